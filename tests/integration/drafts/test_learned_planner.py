"""The learned planner in a whole system: its text, its recordings, training from them, bad settings."""

import asyncio
from pathlib import Path

import pytest

from specinfer.drafters.ngram import NgramDrafter
from specinfer.errors import SettingError
from specinfer.planning.learned import load_weights
from specinfer.planning.learned_training import main, read_steps
from tests.support.oracle import first, greedy, never
from tests.support.system import ScriptedDrafter, running_system

PROMPTS = [[5, 17, 3, 88, 41, 9, 60], [33], [7] * 20, [90, 11, 52, 19, 64, 23, 8, 95, 14, 77, 31, 4] * 4]


def drafters() -> dict[str, ScriptedDrafter | NgramDrafter]:
    return {"half": ScriptedDrafter(first(2)), "wrong": ScriptedDrafter(never), "ngram": NgramDrafter(1)}


async def test_recorded_steps_train_weights_that_a_gateway_takes(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recordings contain no tokens."""
    steps, weights = tmp_path / "steps.jsonl", tmp_path / "weights.json"
    async with running_system(redis_url, drafters(), record_steps=str(steps)) as system:
        for length in range(20, 26):
            prompts = [[*prompt, length] for prompt in PROMPTS]
            await asyncio.gather(*(system.tokens(prompt, max_new_tokens=length) for prompt in prompts))
    recorded, names = read_steps("recording", [steps])
    assert names == ["half", "wrong", "ngram"]
    assert any(
        matches[name] >= 4 and path for step, matches in recorded for name, (_, path) in step.outcomes.items()
    )
    assert "token" not in steps.read_text()
    monkeypatch.setattr("sys.argv", ["train", "--recording", str(steps), "--out", str(weights)])
    main()
    assert load_weights("planner", weights).keys() >= {"half", "ngram", "half+ngram+wrong"}
    async with running_system(redis_url, drafters(), adaptive=True, planner=str(weights)) as system:
        answers = await asyncio.gather(*(system.tokens(prompt, max_new_tokens=24) for prompt in PROMPTS))
    assert answers == [greedy(prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"planner": __file__},
            r"planner = .*test_learned_planner\.py':",
        ),
        ({"record_steps": "/none/steps.jsonl"}, r"record_steps = '/none/steps\.jsonl':"),
    ],
)
async def test_files_that_cannot_be_used_end_the_start(
    redis_url: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        async with running_system(redis_url, {}, **options):
            pass
