"""Without a prompt file a target answers turns of texts, and prompts that it invents."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specinfer.errors import SettingError
from specinfer.text.prompts import read_prompts
from specinfer.training import train_speculator as command
from specinfer.training.reading import stages, writer
from specinfer.training.reading.kept import HELD_OUT, OWN
from specinfer.training.run import InterruptionError
from specinfer.training.speculator_method import SpeculatorMethod
from specinfer.training.train_speculator import train_speculator
from tests.support.models.saved_model import save_target


def test_without_a_file_it_asks_turns_of_texts_and_prompts_that_the_model_invents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is continued asks the same prompts, whatever has become of the texts; a new one asks others."""
    monkeypatch.setattr(stages, "MOST_INVENTED", 24)
    monkeypatch.setattr(stages, "MIN_NEW_TOKENS", 0)  # a pass may take any time
    monkeypatch.setattr(stages, "INVENTING_SHARE", 1e6)  # all are invented and answered
    monkeypatch.setattr(writer, "HELD_OUT_PROMPTS", 12)
    monkeypatch.setattr(command, "compare", lambda *_: [])
    monkeypatch.setattr(command, "advice", lambda *_: ())

    target, texts, work = save_target(tmp_path / "target"), tmp_path / "texts", tmp_path / "out.work"
    texts.mkdir()
    for number in range(12):
        (texts / f"page{number}.md").write_text(f"Page {number}\n\n" + "The text of a page is read. " * 15)

    def train(**options: Any) -> None:
        given = {"model": str(target), "text": [texts], "out": tmp_path / "out", "minutes": 0.05}
        train_speculator(**given, **options, method=SpeculatorMethod.BLOCKWISE, device="cpu")

    def prompts_of(kind: str) -> set[bytes]:
        return {np.load(path)["prompt"].tobytes() for path in (work / "read").glob(f"{kind}-*.npz")}

    def interrupted(*_: Any) -> None:
        raise InterruptionError("in writing")

    with monkeypatch.context() as patch:
        patch.setattr(stages, "write_answers", interrupted)
        with pytest.raises(InterruptionError):
            train()
    asked = read_prompts(work / "prompts.jsonl")
    assert 12 + 12 < len(asked) <= 12 + 24, "those of a few tokens are left out"
    assert sum("Page" in text for text in asked) == 12
    (texts / "page0.md").unlink()
    train()
    assert read_prompts(work / "prompts.jsonl") == asked
    first = prompts_of(HELD_OUT)
    assert len(first) == 12
    other = tmp_path / "other.jsonl"
    other.write_text("".join(f'{{"turns": ["another {i}"]}}\n' for i in range(12)))
    for name in ("out", "out-blockwise"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)  # moved elsewhere
    with pytest.raises(SettingError, match=r"has another prompt for .* --overwrite"):
        train(prompts=other)

    train(overwrite=True, seed=1)
    assert read_prompts(work / "prompts.jsonl") != asked
    assert len(prompts_of(HELD_OUT)) == 12
    assert prompts_of(HELD_OUT) != first
    assert len(prompts_of(OWN)) > 6
    assert not prompts_of(HELD_OUT) & prompts_of(OWN)
