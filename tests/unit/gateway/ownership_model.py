"""The rules of docs/protocol.md, "Ownership", as a small machine of states: no Redis, no clock, no network.

What one Redis script does is one action. A gateway's next action may come arbitrarily late, which is what
a paused gateway looks like, and a lease may end whenever its holder does not happen to renew it. A message to
Redis or to the verifier is one action when it is sent and another when it arrives; its sender may give up
waiting for it, and it arrives all the same. What the model leaves out: a verifier that restarts has another
instance id, so it is another verifier.

Numbers of adoptions and fences are kept by rank, so that the model stays finite. Clients read whatever is
published at once: whoever reads later can see only what stays published, and that never changes (`truth`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

NOBODY = -1
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """Scope of the model, and the rules that are kept; the defaults are the protocol."""

    gateways: int = 2
    requests: int = 1
    tokens: int = 2
    """Number of tokens of every request."""
    expiries: int = 2
    """Leases of living gateways that end; those of dead ones always may."""
    crashes: int = 1
    losses: int = 0
    """Times that Redis loses all its data."""
    drains: int = 0
    """Requests that a gateway gives away though it could run them; without a verifier it always does."""
    steps_travel: bool = True
    """True if messages to the verifier are sent and arrive at different times; else at once."""
    writes_travel: bool = True
    """The same of messages to Redis."""
    late: int = 1
    """Messages under way that nobody waits for any more."""
    drawn: bool = False
    """True if each gateway would choose other tokens, as where drafts are drawn; else all choose the same."""
    writes_name_their_writer: bool = True
    writes_name_their_adoption: bool = True
    verifier_checks_fences: bool = True
    publishes_after_writes: bool = True
    adopts_only_what_is_free: bool = True
    fences_go_on_rising: bool = True
    """Also when Redis has lost its data."""


class Run(NamedTuple):
    """A request in a gateway's memory."""

    number: int
    """Number of the adoption."""
    tokens: Tokens
    stored: int
    """Number of the tokens whose write was acknowledged."""
    fresh: bool = True
    """True if the verifier is to be sent everything, not only what is new."""


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
"""The number of an adoption that was just made; see `with_ranks`."""


class Gateway(NamedTuple):
    """One process; `fence` is that of the verifier's lease, 0 without."""

    alive: bool
    fence: int
    runs: tuple[Run | None, ...]
    step: Step | None
    """Sent, and waited for."""
    write: Write | None


class Record(NamedTuple):
    """A request in Redis."""

    owner: int
    number: int
    tokens: Tokens


class Redis(NamedTuple):
    """Its data."""

    leases: tuple[bool, ...]
    records: tuple[Record | None, ...]
    holder: int
    """Holder of the verifier's lease."""
    fence: int
    """The last one given away."""


class Verifier(NamedTuple):
    """The highest fence seen, and what it holds of each request."""

    fence: int
    cached: tuple[Tokens | None, ...]
    served: int
    """For the invariants: whom it served under this fence."""


class Left(NamedTuple):
    """Number of faults that may still come."""

    expiries: int
    crashes: int
    losses: int
    drains: int


class State(NamedTuple):
    """Everything at one moment."""

    gateways: tuple[Gateway, ...]
    redis: Redis
    verifier: Verifier
    late: tuple[Message, ...]
    seen: tuple[Tokens, ...]
    """Tokens that the client of each request was given."""
    truth: tuple[Tokens, ...]
    """For the invariants: the longest text that Redis has held of each request."""
    left: Left
    broken: str = ""
    """The invariant that the last action broke."""


def first(rules: Rules) -> State:
    """Everybody is up, no request was sent."""
    nothing: tuple[None, ...] = (None,) * rules.requests
    gateway = Gateway(True, 0, nothing, None, None)
    redis = Redis((True,) * rules.gateways, nothing, NOBODY, 0)
    empty: tuple[Tokens, ...] = ((),) * rules.requests
    left = Left(rules.expiries, rules.crashes, rules.losses, rules.drains)
    return State((gateway,) * rules.gateways, redis, Verifier(0, nothing, NOBODY), (), empty, empty, left)


def finished(state: State, rules: Rules) -> bool:
    """Return True if every client has everything."""
    return all(len(seen) == rules.tokens for seen in state.seen)


def put(items: tuple, index: int, item: object) -> tuple:  # type: ignore[type-arg]  # of whatever it holds
    """The same tuple with another item at one place."""
    return (*items[:index], item, *items[index + 1 :])


def with_gateway(state: State, index: int, **fields: object) -> State:
    """The same state with other fields of one gateway."""
    gateway = state.gateways[index]._replace(**fields)  # type: ignore[arg-type]
    return state._replace(gateways=put(state.gateways, index, gateway))


def with_run(state: State, gateway: int, request: int, run: Run | None) -> State:
    """The same state with another run of one request at one gateway."""
    return with_gateway(state, gateway, runs=put(state.gateways[gateway].runs, request, run))


def with_record(state: State, request: int, record: Record | None) -> State:
    """The same state with another record of one request."""
    return state._replace(redis=state.redis._replace(records=put(state.redis.records, request, record)))


def with_ranks(state: State) -> State:
    """The same state with the smallest numbers that tell it from others.

    An adoption is the latest of its request (1) or over (0); of fences only the order matters.
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
    """At least the server's clock, so higher than all before it; or else only what the data in Redis say."""
    if not rules.fences_go_on_rising:
        return state.redis.fence + 1
    return max(state.redis.fence, state.verifier.fence, *_fences_in_use(state)) + 1


def gone(state: State, holder: int) -> bool:
    """Return True if what somebody holds may be taken."""
    return holder == NOBODY or not state.redis.leases[holder]


def name(gateway: int) -> str:
    """A gateway's name in texts: A, B, C."""
    return chr(ord("A") + gateway)


Actions = Iterator[tuple[str, State]]
