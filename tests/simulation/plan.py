"""Plans of worlds, drawn from seeds: processes, requests and faults."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from specinfer.v1 import common_pb2, generation_pb2
from tests.simulation.target import likely
from tests.support.system import text_of

Prompt: TypeAlias = tuple[int, ...]

REGEXES = ("([a-f]g|[h-p]){3,40}", "(yes|no)( (yes|no)){2,9}", "[A-Z][a-z ]{4,60}")
HORIZON_S = 4.0
"""Faults begin within this time."""
SETTLED_S = 600.0
"""Every request ends within this time after the last fault."""


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A request, and what its client does."""

    name: str
    at: float
    """Seconds after the world's start."""
    prompt: tuple[int, ...]
    fields: dict[str, Any]
    """Fields of the message besides id and prompt."""
    order: tuple[int, ...]
    """Gateways in the client's order."""
    behaviour: str
    """"reads", "cancels", "vanishes", "moves" (attaches elsewhere), "twice" (sends it twice) or "slow"."""
    after: int
    """Number of tokens after which the client cancels, vanishes or moves."""

    @property
    def sampled(self) -> bool:
        return bool(self.fields["sampling"].temperature > 0)

    def message(self) -> generation_pb2.GenerateRequest:
        return generation_pb2.GenerateRequest(
            request_id=self.name, tokens=generation_pb2.TokenIds(ids=self.prompt), **self.fields
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault; `seconds` is its duration."""

    at: float
    kind: str
    target: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:6.3f} s: {self.kind} of {self.target} for {self.seconds:.3f} s"


@dataclass(slots=True)
class Plan:
    """A whole world."""

    seed: int
    gateways: int
    verifiers: int
    speculators: int
    embedded: bool
    """True: one gateway with the embedded store, which has a file."""
    drawing: bool
    """True if speculators draw: the text of sampled requests then depends on what was drafted."""
    resident: bool
    """True if the verifiers have a speculator of their own."""
    lease_s: float
    kv_tokens: int
    max_batch: int
    asks: list[Ask]
    faults: list[Fault] = field(default_factory=list)

    @property
    def settles_at(self) -> float:
        """Seconds after the start when the last fault is over."""
        return max([HORIZON_S, *(fault.at + fault.seconds for fault in self.faults)])

    def describe(self) -> str:
        store = "embedded store" if self.embedded else "Redis"
        return (
            f"seed {self.seed}: {self.gateways} gateways, {self.verifiers} verifiers"
            f"{' with a resident speculator' if self.resident else ''}, {self.speculators} speculators, {store}, "
            f"lease {self.lease_s:.2f} s, {len(self.asks)} requests, {len(self.faults)} faults"
        )


CLUSTER_FAULTS = (
    *("kill gateway", *["pause gateway"] * 3, "expire gateway", *["flap gateway"] * 4, "expire verifier"),
    *("kill verifier", "pause verifier", "forget", "lose verifier", "lose verifier", "slow verifier"),
    *("redis away", "redis slow", "lose write", "lose write", "fail over", "late masks"),
    *("cut gateway", "slow gateway", "lose gateway", "kill speculator", "wrong trees", "drain gateway"),
)
ALONE_FAULTS = (
    *("kill gateway", "pause gateway", "kill verifier", "pause verifier", "forget", "lose verifier"),
    *("slow verifier", "disk full", "late masks", "kill speculator", "wrong trees", "lose gateway"),
)


def plan_of(seed: int) -> Plan:
    """Return the world of a seed."""
    draw = Random(seed)
    embedded = draw.random() < 0.2
    gateways = 1 if embedded else draw.choice([1, 2, 2, 3])
    verifiers = 1 if embedded else draw.choice([1, 2, 2, 3])
    plan = Plan(
        seed,
        gateways,
        verifiers,
        draw.choice([0, 0, 1, 1, 2]),
        embedded,
        draw.random() < 0.4,
        draw.random() < 0.5,
        draw.choice([0.6, 1.0, 3.0]),
        draw.choice([192, 512, 2048]),
        draw.choice([2, 4, 8]),
        [],
    )
    plan.asks = [_ask(draw, number, gateways) for number in range(draw.randint(1, 6))]
    kinds = ALONE_FAULTS if embedded else CLUSTER_FAULTS
    for _ in range(draw.choice([0, 1, 1, 2, 3, 4, 6])):
        at, seconds = draw.uniform(0.01, HORIZON_S * draw.random()), draw.choice([0.05, 0.3, 1.0, 4.0])
        plan.faults.append(Fault(at, draw.choice(kinds), draw.randrange(3), seconds * draw.uniform(0.5, 1.5)))
    plan.faults.sort(key=lambda fault: fault.at)
    return plan


def _ask(draw: Random, number: int, gateways: int) -> Ask:
    prompt = tuple(draw.randrange(3, 97) for _ in range(draw.choice([2, 5, 17, 40])))
    fields = dict[str, Any](max_new_tokens=draw.choice([1, 8, 40, 90]), ignore_eos=True)
    kind = draw.choice(sorted(KINDS))
    KINDS[kind](draw, prompt, fields)
    order = list(range(gateways))
    draw.shuffle(order)
    behaviour = draw.choice(["reads"] * 5 + ["cancels", "vanishes", "moves", "twice", "slow"])
    return Ask(
        f"r{number}-{kind}",
        draw.uniform(0.0, 2.0),
        prompt,
        fields,
        tuple(order),
        behaviour,
        draw.randrange(fields["max_new_tokens"] + 1),
    )


def _greedy(draw: Random, prompt: Prompt, fields: dict[str, Any]) -> None:
    fields["sampling"] = common_pb2.SamplingParams(temperature=0.0)


def _sampled(draw: Random, prompt: Prompt, fields: dict[str, Any]) -> None:
    fields["sampling"] = common_pb2.SamplingParams(temperature=0.9, seed=draw.randrange(2**31))


def _penalised(draw: Random, prompt: Prompt, fields: dict[str, Any]) -> None:
    fields["sampling"] = common_pb2.SamplingParams(
        temperature=0.0, presence_penalty=1.5, frequency_penalty=0.7
    )


def _constrained(draw: Random, prompt: Prompt, fields: dict[str, Any]) -> None:
    (_sampled if draw.random() < 0.5 else _greedy)(draw, prompt, fields)
    fields["constraint"] = common_pb2.Constraint(regex=draw.choice(REGEXES))


def _stopped(draw: Random, prompt: Prompt, fields: dict[str, Any]) -> None:
    _greedy(draw, prompt, fields)
    context, text = list(prompt), ""
    for _ in range(fields["max_new_tokens"]):
        context.append(likely(context))
        text += text_of(context[-1:])
    place = draw.randrange(max(1, len(text) - 3))
    fields["stop_strings"] = [text[place : place + 3] or "abc"]


def _with_deadline(draw: Random, prompt: Prompt, fields: dict[str, Any]) -> None:
    _greedy(draw, prompt, fields)
    fields["deadline_seconds"] = draw.uniform(0.2, 4.0)


def _with_rows(draw: Random, prompt: Prompt, fields: dict[str, Any]) -> None:
    _sampled(draw, prompt, fields)
    fields["logprobs"] = True


KINDS: dict[str, Callable[[Random, Prompt, dict[str, Any]], None]] = {
    "greedy": _greedy,
    "sampled": _sampled,
    "penalised": _penalised,
    "constrained": _constrained,
    "stopped": _stopped,
    "rows": _with_rows,
    "deadline": _with_deadline,
}
"""Kinds of requests; each sets fields of the message."""
