"""The plan of a suite, and the outcome of a run of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from specinfer.cli.bench import BenchPlan, Turn, summarise
from specinfer.client import acceptance_length
from specinfer.prompts import PromptRow


@dataclass(frozen=True, slots=True)
class SuiteSize:
    """The extent of a suite."""

    prompts: int
    new_tokens: int
    batches: tuple[int, ...]


QUICK, FULL = SuiteSize(10, 48, (1, 4)), SuiteSize(40, 128, (1, 4, 16))
"""Quick: ten minutes on two cores with the default model."""


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """Runs of every pool."""

    prompts: tuple[PromptRow, ...]
    size: SuiteSize
    temperature: float
    chat: bool = True
    """True if prompts are user turns; a base model has no template for them."""

    def bench(self, modes: tuple[str, ...]) -> BenchPlan:
        """The same for `specinfer bench`."""
        texts = tuple(prompt.text for prompt in self.prompts)
        size = self.size
        return BenchPlan(texts, modes, size.batches, size.new_tokens, self.temperature, chat=self.chat)

    def to_json(self) -> dict[str, Any]:
        """Return what two suites must have in common to be one; of the prompts their number and a hash."""
        joined = "\0".join(prompt.text for prompt in self.prompts)
        return {
            "prompts": len(self.prompts),
            "prompts_sha256": sha256(joined.encode()).hexdigest()[:16],
            "new_tokens": self.size.new_tokens,
            "batches": list(self.size.batches),
            "temperature": self.temperature,
            **({} if self.chat else {"raw": True}),
        }


Turns = Mapping[str, Sequence[Turn]]
"""By mode, in the prompts' order."""


def runs_of(plan: SuitePlan, batch: int, turns: Turns) -> list[dict[str, Any]]:
    """One entry per mode; at batch 1, where each prompt is a turn of its own, also by source and prompt."""
    plain = turns.get("incremental")
    found = []
    for mode, of_mode in turns.items():
        entry = asdict(summarise(mode, batch, of_mode, plain))
        if batch == 1:
            entry["by_source"] = _by_source(plan, mode, of_mode, plain)
            entry["tokens_per_step"] = [round(_tokens_per_step(turn), 3) for turn in of_mode]
        found.append(entry)
    return found


def _by_source(
    plan: SuitePlan, mode: str, turns: Sequence[Turn], plain: Sequence[Turn] | None
) -> dict[str, dict[str, float | None]]:
    places: dict[str, list[int]] = {}
    for place, prompt in enumerate(plan.prompts):
        places.setdefault(prompt.source, []).append(place)
    found = {}
    for source, own in places.items():
        others = None if plain is None else [plain[place] for place in own]
        run = summarise(mode, 1, [turns[place] for place in own], others)
        found[source] = {
            "speedup": run.speedup,
            "speedup_error": run.speedup_error,
            "acceptance_length": run.acceptance_length,
        }
    return found


def _tokens_per_step(turn: Turn) -> float:
    """Over all its answers."""
    stats = [answer.stats for answer in turn.answers]
    return acceptance_length(sum(each.steps for each in stats), sum(each.accepted for each in stats))
