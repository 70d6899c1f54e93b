"""`specinfer train speculator`: from prompts to a checkpoint whose drafts are accepted."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specinfer.drafters import DrafterOptions, make_drafter
from specinfer.drafters.draft import draft_group
from specinfer.errors import IncompatibleError, InvalidInputError, SettingError
from specinfer.llm import LLM, SamplingParams, draft_gains
from specinfer.training import make_corpus as making
from specinfer.training.corpus import finished_jobs
from specinfer.training.reading import stages
from specinfer.training.run import InterruptionError
from specinfer.training.speculator_method import SpeculatorMethod
from specinfer.training.train_speculator import train_speculator
from tests.support.models.gguf_models import write_family
from tests.support.models.saved_model import save_target
from tests.support.oracle import greedy
from tests.support.system import ascii_tokenizer, running_system

PROMPTS = [f"prompt {i}: {'abc' * i}" for i in range(12)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def train(target: Path, tmp_path: Path) -> Callable[..., Path]:
    """Function that runs the command, and returns the checkpoint."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in PROMPTS))
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(8):
        (texts / f"page{number}.md").write_text(f"Page {number}\n\n" + "The text of a page is read. " * 15)

    def run(**options: Any) -> Path:
        given = {"prompts": prompts, "model": str(target), "out": tmp_path / "out", "minutes": 0.05}
        given |= {"text": [texts]}
        train_speculator(**(given | {"device": "cpu"} | options))
        return tmp_path / "out"

    return run


@pytest.mark.parametrize("method", [SpeculatorMethod.EAGLE, SpeculatorMethod.BLOCKWISE])
async def test_what_it_trains_is_served_and_accepted(
    method: SpeculatorMethod, train: Callable[..., Path], redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """SSMs are covered by `tests/docs/test_own_model.py`."""
    out = train(method=method)
    name = method.value
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if line.endswith("%")]
    assert [row[0] for row in rows] == [*(["1", "2"] if method == "eagle" else []), "1", "2", "3"]
    for row in rows:
        shares = [float(value) for value in row[1::2]]
        assert shares == sorted(shares)
    assert f"end to end: {len(PROMPTS)} held-out prompts" in shown
    assert f"\nngram+{name},model={out}" in shown
    assert shown.splitlines()[-1].startswith("not known whether to serve it: ")  # after seconds of training
    assert draft_group("any", str(out)) == {"drafter": f"ngram+{name}", "model": str(out)}
    drafter = make_drafter(name, DrafterOptions(model=str(out), dtype="float32", kv_tokens=2048))
    prompt = ascii_tokenizer().encode(PROMPTS[3])
    async with running_system(redis_url, {name: drafter}) as system:
        replies = await system.generate(prompt, max_new_tokens=40)
        assert [t for reply in replies for t in reply.token_ids] == greedy(prompt, 40)
        assert replies[-1].summary.stats.accepted > 0


@pytest.mark.native
@pytest.mark.parametrize(("family", "dense"), [("gemma2", True), ("qwen3_moe", False)])
def test_a_gguf_file_of_another_family_gets_drafts(
    family: str,
    dense: bool,
    train: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(stages, "MIN_NEW_TOKENS", 0)  # a pass may take any time
    monkeypatch.setattr(draft_gains, "NEW_TOKENS", 3)
    model = str(write_family(family, tmp_path))
    with pytest.raises(IncompatibleError, match=f"'{family}': a trained SSM: "):
        train(model=model, method=SpeculatorMethod.SSM)
    out = train(model=model)
    shown = capsys.readouterr().out
    flags = [line.split(": ")[0] for line in shown.splitlines() if line.startswith("ngram+")]
    both = [f"ngram+eagle,model={out}", f"ngram+blockwise,model={out}-blockwise"]
    assert flags == (both if dense else [f"ngram+blockwise,model={out}"])
    texts = []
    for draft in ("none", *(flag.removeprefix("ngram+") for flag in flags)):
        with LLM(model, draft=draft, adaptive=False, kv_tokens=1024) as llm:
            params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            texts.append(llm.generate(PROMPTS[:3], params))
            assert (llm.metrics["spec_decode_num_draft_tokens"] > 0) == (draft != "none")
    plain, *drafted = [[text.outputs[0].token_ids for text in answers] for answers in texts]
    assert drafted == [plain] * len(flags)


def test_it_continues_where_it_was_interrupted(
    request: pytest.FixtureRequest,
    train: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    work, whole = making.continue_prompts, tmp_path / "out.work"

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for number, item in enumerate(work(*arguments)):
            yield item
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(making, "continue_prompts", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(InterruptionError, match="4 of 12"):
        train(minutes=5.0)
    monkeypatch.setattr(making, "continue_prompts", work)
    kept = finished_jobs(whole / "corpus.jsonl")
    for changed in ({"minutes": 0.1}, {"seed": 1}, {"method": SpeculatorMethod.EAGLE}):
        (name,) = changed
        with pytest.raises(SettingError, match=rf"{name} = .*has a run with .*; --overwrite"):
            train(**({"minutes": 5.0} | changed))
    minutes = []

    def interrupt(**given: Any) -> None:
        minutes.append(given["minutes"])
        raise InterruptionError("in training")

    monkeypatch.setattr(stages, "train_ssm", interrupt)
    for _ in range(2):
        with pytest.raises(InterruptionError, match="in training"):
            train(minutes=5.0)
    assert finished_jobs(whole / "corpus.jsonl").items() > kept.items()
    assert minutes[0] == minutes[1] < 5.0, "the time of corpus and features is counted once"
    output = capsys.readouterr().err.replace("\n", " ")
    assert "continuing with 4 continuations" in output
    assert "corpus: 12 continuations are in" in output
    monkeypatch.undo()
    train(minutes=0.05, overwrite=True)
    with pytest.raises(SettingError, match="--overwrite"):
        train()


def test_bad_options_are_refused_at_once(
    train: Callable[..., Path], target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, few = tmp_path / "empty.jsonl", tmp_path / "few.jsonl"
    empty.touch()
    few.write_text('{"turns": ["a"]}\n' * 9)
    monkeypatch.setattr(making, "continue_prompts", None)
    for options, error, message in (
        ({"model": "no/such/model"}, SettingError, "model = 'no/such/model':"),
        ({"prompts": empty}, InvalidInputError, "prompts = "),
        ({"prompts": few}, InvalidInputError, "prompts = "),
        (
            {"minutes": 1e-5},
            SettingError,
            "minutes = 1e-05:",
        ),
        ({"minutes": -1.0}, SettingError, "minutes = -1.0:"),
        ({"device": "abacus"}, SettingError, "device = 'abacus'"),
    ):
        with pytest.raises(error, match=message):
            train(**options)
