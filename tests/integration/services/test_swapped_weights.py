"""A drafter whose weights are replaced by worse ones is reported as collapsed."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from gateway.observability import acceptance_watch
from specinfer.drafters import Drafter, DrafterOptions, DraftJob
from specinfer.drafters.ssm import SsmDrafter
from specinfer.errors import SpecInferError
from specinfer.tree import TokenTree
from specinfer.v1 import generation_pb2
from tests.support.oracle import always, greedy
from tests.support.system import ScriptedDrafter, System, ascii_tokenizer, running_system, until
from tests.support.tiny_models import tiny_transformers

WINDOW, LENGTH = 60, 60
PROMPTS = [[5 + i, 17, 3, 88, 41, 60, 7, 9] for i in range(8)]


class Swapped(ScriptedDrafter):
    """Drafter that delegates to another one, which tests replace."""

    def __init__(self, first: Drafter) -> None:
        super().__init__(always)
        self.now, self.description = first, first.description

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        return self.now.draft(jobs)

    def release(self, request_id: str) -> None:
        self.now.release(request_id)


def ssm(directory: Path, seed: int) -> SsmDrafter:
    tiny_transformers("llama", seed).save_pretrained(directory)
    ascii_tokenizer()._fast.save(str(directory / "tokenizer.json"))
    return SsmDrafter.from_options(DrafterOptions(model=str(directory), dtype="float32", kv_tokens=2048))


async def test_swapped_weights_raise_the_alarm_of_their_speculator_alone(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance_watch, "WINDOW", WINDOW)
    weights, same, other = (
        ssm(tmp_path / name, seed) for name, seed in (("own", 0), ("same", 0), ("other", 9))
    )
    drafter = Swapped(weights)
    async with running_system(redis_url, {"swapped": drafter, "same": same}) as system:

        async def answer() -> None:
            texts = await asyncio.gather(*(system.tokens(p, max_new_tokens=LENGTH) for p in PROMPTS))
            assert texts == [greedy(p, LENGTH) for p in PROMPTS]

        async def shows(*wanted: float) -> None:
            await until(
                lambda: [value(system, "collapsed", name) for name in ("swapped", "same")] == [*wanted]
            )

        await answer()
        await shows(0, 0)
        drafter.now = other
        await answer()
        await shows(1, 0)
        for name in ("swapped", "same"):
            state = await state_of(system, name)
            assert 0 < state.auc <= 1
            await until(partial(shown_as, system, state))
        drafter.now = weights
        await answer()
        await answer()
        await shows(0, 0)


def shown_as(system: System, state: generation_pb2.SpeculatorState) -> bool:
    """Return whether the metrics of a speculator equal its state."""
    scores = {"said": state.raw_calibration_error, "corrected": state.calibration_error}
    errors = {kind: value(system, "calibration_error", state.name, scores=kind) for kind in scores}
    return errors == pytest.approx(scores) and value(system, "auc", state.name) == pytest.approx(state.auc)


async def state_of(system: System, name: str) -> generation_pb2.SpeculatorState:
    """Return the state of a speculator in `Generation.Status`."""
    status = await system.stub.Status(generation_pb2.StatusRequest())
    (state,) = [speculator for speculator in status.speculators if speculator.name == name]
    return state


def value(system: System, metric: str, speculator: str, **more: str) -> float | None:
    """Return a metric of a speculator."""
    registry = system.registries["gateway"]
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == f"specinfer_speculator_{metric}" and (
                sample.labels | more | {"speculator": speculator} == sample.labels
            ):
                return sample.value
    return None
