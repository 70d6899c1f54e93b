"""The rules of docs/protocol.md, "Ownership", as a small state machine without Redis, clock and network.

One Redis script is one action. A gateway's next action may come arbitrarily late, as if the gateway was paused,
and a lease may end whenever its holder does not renew it. Sending a message to Redis or to the verifier is one
action and its arrival another; the sender may give up waiting, but the message still arrives. The model has no
restarts of verifiers: a restarted verifier has a new instance id, so it counts as another verifier.

Adoption numbers and fences are replaced by their ranks, so that the number of states is finite. Clients read
published tokens at once: later readers see only tokens that are still published, and those never change (`truth`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

NOBODY = -1
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """Size of the model, and rules that can be switched off; the defaults are the protocol."""

    gateways: int = 2
    requests: int = 1
    tokens: int = 2
    """Number of tokens of every request."""
    expiries: int = 2
    """Maximum number of expired leases of living gateways; leases of dead gateways may always expire."""
    crashes: int = 1
    losses: int = 0
    """Maximum number of times that Redis loses all its data."""
    drains: int = 0
    """Maximum number of requests given away by gateways that have a verifier; gateways without one always may."""
    steps_travel: bool = True
    """True if sending and arrival of a message to the verifier are two actions, False if they are one."""
    writes_travel: bool = True
    """True if sending and arrival of a message to Redis are two actions, False if they are one."""
    late: int = 1
    """Maximum number of messages that have not arrived and whose sender no longer waits."""
    drawn: bool = False
    """True if each gateway would choose different tokens, as with sampled drafts."""
    writes_name_their_writer: bool = True
    writes_name_their_adoption: bool = True
    verifier_checks_fences: bool = True
    publishes_after_writes: bool = True
    adopts_only_what_is_free: bool = True
    fences_go_on_rising: bool = True
    """True if fences rise even after Redis has lost its data."""


class Run(NamedTuple):
    """A request in a gateway's memory."""

    number: int
    """Number of the adoption."""
    tokens: Tokens
    stored: int
    """Number of tokens whose write was acknowledged."""
    fresh: bool = True
    """True if the next step must send all tokens, not only the new ones."""


class Step(NamedTuple):
    """A message to the verifier."""

    gateway: int
    fence: int
    request: int
    tokens: Tokens
    fresh: bool


class Write(NamedTuple):
    """A message to Redis."""

    gateway: int
    number: int
    request: int
    start: int
    tokens: Tokens


Message = Step | Write
NEW = 2
"""Number of a new adoption, before `with_ranks` replaces it."""


class Gateway(NamedTuple):
    """A gateway process; `fence` is the number of its lease of the verifier, 0 without a lease."""

    alive: bool
    fence: int
    runs: tuple[Run | None, ...]
    step: Step | None
    """The step that was sent and has no answer yet."""
    write: Write | None


class Record(NamedTuple):
    """A request in Redis."""

    owner: int
    number: int
    tokens: Tokens


class Redis(NamedTuple):
    leases: tuple[bool, ...]
    records: tuple[Record | None, ...]
    holder: int
    """Gateway with the lease of the verifier."""
    fence: int
    """The latest fence that was given to a gateway."""


class Verifier(NamedTuple):
    """The verifier: the highest fence that it has seen, and the cached tokens of each request."""

    fence: int
    cached: tuple[Tokens | None, ...]
    served: int
    """The gateway that used this fence; only for the invariants."""


class Left(NamedTuple):
    """Maximum numbers of further faults."""

    expiries: int
    crashes: int
    losses: int
    drains: int


class State(NamedTuple):
    """State of the whole model."""

    gateways: tuple[Gateway, ...]
    redis: Redis
    verifier: Verifier
    late: tuple[Message, ...]
    seen: tuple[Tokens, ...]
    """Tokens that the client of each request has received."""
    truth: tuple[Tokens, ...]
    """The longest text that Redis has stored for each request; only for the invariants."""
    left: Left
    broken: str = ""
    """Description of the invariant that the last action broke; "" if none."""


def first(rules: Rules) -> State:
    """Return the state in which all gateways run and no request was sent."""
    nothing: tuple[None, ...] = (None,) * rules.requests
    gateway = Gateway(True, 0, nothing, None, None)
    redis = Redis((True,) * rules.gateways, nothing, NOBODY, 0)
    empty: tuple[Tokens, ...] = ((),) * rules.requests
    left = Left(rules.expiries, rules.crashes, rules.losses, rules.drains)
    return State((gateway,) * rules.gateways, redis, Verifier(0, nothing, NOBODY), (), empty, empty, left)


def finished(state: State, rules: Rules) -> bool:
    """Return True if every client has all its tokens."""
    return all(len(seen) == rules.tokens for seen in state.seen)


def put(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]  # of any items
    return (*items[:index], item, *items[index + 1 :])


def with_gateway(state: State, index: int, **fields: object) -> State:
    gateway = state.gateways[index]._replace(**fields)  # type: ignore[arg-type]
    return state._replace(gateways=put(state.gateways, index, gateway))


def with_run(state: State, gateway: int, request: int, run: Run | None) -> State:
    return with_gateway(state, gateway, runs=put(state.gateways[gateway].runs, request, run))


def with_record(state: State, request: int, record: Record | None) -> State:
    return state._replace(redis=state.redis._replace(records=put(state.redis.records, request, record)))


def with_ranks(state: State) -> State:
    """Return the state with adoption numbers and fences replaced by the smallest equivalent ones.

    The number of a request's latest adoption becomes 1, older numbers 0. Fences keep only their order.
    """
    fences = {0, state.redis.fence, state.verifier.fence, *_fences_in_use(state)}
    ranks = {fence: rank for rank, fence in enumerate(sorted(fences))}
    current = tuple(record.number if record else NOBODY for record in state.redis.records)

    def number(request: int, of: int) -> int:
        return int(of == current[request])

    def message(item: Message | None) -> Message | None:
        if isinstance(item, Step):
            return item._replace(fence=ranks[item.fence])
        return item and item._replace(number=number(item.request, item.number))

    gateways = tuple(
        Gateway(
            gateway.alive,
            ranks[gateway.fence],
            tuple(run and run._replace(number=number(r, run.number)) for r, run in enumerate(gateway.runs)),
            message(gateway.step),  # type: ignore[arg-type]  # keeps its kind
            message(gateway.write),  # type: ignore[arg-type]
        )
        for gateway in state.gateways
    )
    records = tuple(record and record._replace(number=1) for record in state.redis.records)
    redis = state.redis._replace(records=records, fence=ranks[state.redis.fence])
    late = tuple(sorted(map(message, state.late), key=repr)) if state.late else ()
    verifier = state.verifier._replace(fence=ranks[state.verifier.fence])
    return state._replace(gateways=gateways, redis=redis, verifier=verifier, late=late)  # type: ignore[arg-type]


def _fences_in_use(state: State) -> Iterator[int]:
    for gateway in state.gateways:
        yield gateway.fence
        if gateway.step:
            yield gateway.step.fence
    yield from (message.fence for message in state.late if isinstance(message, Step))


def next_fence(state: State, rules: Rules) -> int:
    """Return the next fence: higher than all earlier ones, or only than that in Redis if the rule is switched off."""
    if not rules.fences_go_on_rising:
        return state.redis.fence + 1
    return max(state.redis.fence, state.verifier.fence, *_fences_in_use(state)) + 1


def gone(state: State, holder: int) -> bool:
    """Return True if `holder` is nobody or has no lease any more."""
    return holder == NOBODY or not state.redis.leases[holder]


def name(gateway: int) -> str:
    """Return a gateway's name in action texts: A, B, C."""
    return chr(ord("A") + gateway)


Actions = Iterator[tuple[str, State]]
