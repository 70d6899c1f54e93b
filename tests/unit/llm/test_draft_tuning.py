"""`specinfer models tune`: which variant is kept, for which machine, and who serves it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specinfer.cli.main import app
from specinfer.drafters import tuned
from specinfer.drafters.draft import draft_group
from specinfer.drafters.tuned import keep_tuned, tuned_flags
from specinfer.errors import NotFoundError, SettingError
from specinfer.llm import draft_tuning
from specinfer.llm.draft_gains import Gains
from specinfer.llm.draft_tuning import MeasuredVariant, draft_to_tune, fastest
from specinfer.model.formats.weights_in_format import WeightFormats
from specinfer.options.model_options import PassOptions
from tests.chaos.model_directory import write_model

USUAL = PassOptions()
FORMATS = WeightFormats("as in the file", {"Q8_0": 1}, ("Q8_0",), 5_000_000)


def variant(*ratios: float, **flags: str) -> MeasuredVariant:
    return MeasuredVariant(flags, Gains(tuned.as_setting(flags), 20.0, ratios, 2.0, 9.5), FORMATS)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return a target and a draft of one tokenizer, with an empty cache of kept settings."""
    for module in ("specinfer.system.derived", "specinfer.drafters.tuned"):
        monkeypatch.setattr(f"{module}.cache_directory", lambda: tmp_path / "cache")
    return str(write_model(tmp_path / "target")), str(write_model(tmp_path / "draft", seed=1))


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ([variant(1.5, 1.6, 1.4, weights="q4_0")], "weights=q4_0"),
        ([variant(1.31, 1.41, 1.21, weights="q4_0")], "the default"),
        ([variant(1.1, 1.2, 1.0, weights="q8_0")], "the default"),
        ([variant(1.5, 1.6, 1.4, weights="a"), variant(1.7, 1.7, 1.7, weights="b")], "weights=b"),
        ([variant(9.0, 1.39, 1.19, weights="q4_0")], "the default"),
        ([], "the default"),
    ],
)
def test_a_variant_is_kept_only_if_it_is_clearly_faster_than_the_default(
    others: list[MeasuredVariant], kept: str
) -> None:
    assert fastest([variant(1.3, 1.4, 1.2), *others]).gains.draft == kept


def test_kept_settings_are_served_for_this_pair_and_machine(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target, draft = pair
    assert draft_group(target, draft) == {"drafter": "ngram+ssm", "model": draft}
    keep_tuned(target, draft, {"weights": "q4_0"}, {})
    caplog.set_level(logging.INFO)
    assert draft_group(target, draft) == {"drafter": "ngram+ssm", "model": draft, "weights": "q4_0"}
    (line,) = [record.getMessage() for record in caplog.records if "tune" in record.getMessage()]
    assert line == f"draft of {target}: {draft} with weights=q4_0, as `specinfer models tune` measured"
    assert draft_group(target, f"ssm,model={draft}") == {"drafter": "ssm", "model": draft}, "own settings"
    for other in (PassOptions(executor="torch"), PassOptions(offload="disk"), PassOptions("float32")):
        assert tuned_flags(target, draft, other) == {}
    assert tuned_flags(draft, target, USUAL) == {}
    for name, value in (("processor_name", "another"), ("pass_threads", 99), ("sources_digest", "new")):
        with monkeypatch.context() as patch:
            patch.setattr(tuned, name, lambda value=value: value)
            assert tuned_flags(target, draft, USUAL) == {}
    assert tuned_flags(target, draft, USUAL) == {"weights": "q4_0"}


def test_only_a_fitting_draft_with_variants_is_tuned(pair: tuple[str, str], tmp_path: Path) -> None:
    target, draft = pair
    assert draft_to_tune(target, draft) == draft
    with pytest.raises(NotFoundError, match=f"model = '{target}': no draft of it is on this machine"):
        draft_to_tune(target, "auto")
    with pytest.raises(SettingError, match="is the model itself"):
        draft_to_tune(target, target)


def test_the_command_prints_all_variants_and_keeps_the_fastest(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = pair
    measured = [variant(1.3, 1.4), variant(1.6, 1.8, weights="q4_0")]
    monkeypatch.setattr(draft_tuning, "measure_variants", lambda *_: iter(measured))
    result = CliRunner().invoke(app, ["models", "tune", target, "--draft", draft])
    assert result.exit_code == 0, result.output
    assert "weights=q4_0" in result.output
    assert "34.0" in result.output, "tokens per second"
    assert tuned_flags(target, draft, USUAL) == {"weights": "q4_0"}


def test_an_interrupted_command_keeps_nothing(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Iterator[MeasuredVariant]:
        yield variant(1.3, 1.4)
        yield variant(1.6, 1.8, weights="q4_0")
        raise KeyboardInterrupt

    monkeypatch.setattr(draft_tuning, "measure_variants", interrupted)
    result = CliRunner().invoke(app, ["models", "tune", pair[0], "--draft", pair[1]])
    assert result.exit_code != 0
    assert tuned_flags(*pair, USUAL) == {}


@pytest.mark.native
def test_variants_of_equal_formats_are_measured_once(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of a checkpoint in safetensors is q8_0."""
    monkeypatch.setattr("specinfer.llm.draft_gains.NEW_TOKENS", 4)
    variants = {"ssm": (*tuned.VARIANTS["ssm"], {"beam": "2"})}
    monkeypatch.setattr(draft_tuning, "VARIANTS", variants)
    told: list[str] = []
    found = list(draft_tuning.measure_variants(*pair, ["abc", "de"], told.append))
    assert [one.gains.draft for one in found] == ["the default", "weights=file", "weights=q4_0", "beam=2"]
    assert [len(one.gains.ratios) for one in found] == [2, 2, 2, 2]
    assert len(told) == 5
    by_name = {one.gains.draft: one.formats for one in found}
    assert 0 < by_name["weights=q4_0"].bytes < by_name["the default"].bytes
