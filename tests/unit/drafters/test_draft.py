"""`--draft`: accepted values, drafts that fit the target, and errors before any model is loaded."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.drafters import draft as drafts
from specinfer.drafters.draft import check_draft, draft_group, fitting_drafts, method_of
from specinfer.errors import IncompatibleError, InvalidInputError, SettingError
from specinfer.hub.registry import GgufSource, KnownModel
from specinfer.options.model_options import PassOptions
from specinfer.text.tokenizer import vocabulary_fingerprint
from tests.support.system import ascii_tokenizer

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a model directory with a tokenizer and `size` bytes of weights."""

    def model(name: str, size: int = 1000, more: str = "") -> Path:
        directory = tmp_path / name
        directory.mkdir()
        content = json.loads(ascii_tokenizer().to_json())
        if more:
            content["model"]["vocab"][more] = len(content["model"]["vocab"])
        (directory / "tokenizer.json").write_text(json.dumps(content))
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(bytes(size))
        return directory

    return model


def known(name: str, tokenizer: str, megabytes: int) -> KnownModel:
    """Return an entry of the model registry."""
    return KnownModel(name, "", "", "", GgufSource("", "", "", megabytes), tokenizer)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the registry and the names of downloaded models."""

    def use(*models: KnownModel, pulled: tuple[str, ...] = ()) -> None:
        monkeypatch.setattr(drafts, "known_models", lambda: {model.name: model for model in models})
        monkeypatch.setattr(drafts, "is_pulled", lambda name: name in pulled)

    return use


def test_none_gives_no_draft_and_drafters_are_read_with_their_flags() -> None:
    assert draft_group("anything", "none") is None
    assert draft_group("anything", "suffix") == {"drafter": "suffix"}
    assert draft_group("anything", "ngram+ssm,model=x,beam=2") == {
        "drafter": "ngram+ssm",
        "model": "x",
        "beam": "2",
    }
    with pytest.raises(InvalidInputError, match="must be DRAFTER"):
        draft_group("anything", "ssm,q8_0")


def test_a_model_drafts_in_addition_to_ngrams(make: Make) -> None:
    target, small = make("target"), make("small")
    assert draft_group(str(target), str(small)) == {"drafter": "ngram+ssm", "model": str(small)}
    large = draft_group(str(target), str(small), PassOptions(offload="disk"))
    assert large is not None
    assert int(large["beam"]) * int(large["depth"]) >= 128, "so many nodes are expanded at most"


def test_the_default_model_has_a_trained_draft() -> None:
    group = draft_group("smollm2-135m")
    assert group == {"drafter": "ngram+ssm", "model": "ssm-smollm2-135m"}


def test_a_draft_of_another_tokenizer_is_refused_with_what_fits(
    make: Make, registry: Callable[..., None]
) -> None:
    target, other = make("target", size=4_000_000), make("other", more="more")
    fingerprint = drafts.tokenizer_facts(target).fingerprint
    registry(known("fits", fingerprint, 1), known("large", fingerprint, 3), known("alien", "x", 1))
    with pytest.raises(
        SettingError, match=f"draft = '{other}': has another tokenizer than .*; matching models: fits$"
    ):
        check_draft(str(target), str(other))
    with pytest.raises(SettingError, match="draft = 'nothing':"):
        check_draft(str(target), "nothing")


def test_auto_takes_a_downloaded_draft_and_names_others_that_fit(
    make: Make, registry: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    target = make("target", size=4_000_000)
    fingerprint = drafts.tokenizer_facts(target).fingerprint
    caplog.set_level(logging.INFO)
    registry(known("fits", fingerprint, 2))
    assert [model.name for model in fitting_drafts(str(target))] == ["fits"]
    assert draft_group(str(target)) == {"drafter": "ngram"}
    assert "`specinfer pull fits` (2 MB)" in caplog.text
    registry(known("fits", fingerprint, 2), pulled=("fits",))
    with pytest.raises(SettingError, match="fits"):  # chosen, but its files do not exist
        draft_group(str(target))
    assert f"draft of {target}: fits" in caplog.text


def test_a_trained_speculator_is_run_by_the_drafter_of_its_kind(make: Make) -> None:
    directory = make("own")
    assert method_of(directory) == "ssm"
    for kind, method in {"eagle3": "eagle", "medusa": "medusa", "ssm": "ssm"}.items():
        (directory / "config.json").write_text(
            json.dumps({"speculators_config": {}, "speculators_model_type": kind})
        )
        assert method_of(directory) == method
    (directory / "config.json").write_text(
        json.dumps({"speculators_config": {}, "speculators_model_type": "oracle"})
    )
    with pytest.raises(IncompatibleError, match="'oracle'"):
        method_of(directory)


@given(tokens=st.lists(st.text(max_size=4), unique=True, max_size=8), pads=st.integers(0, 5))
def test_padding_is_no_part_of_a_vocabulary(tokens: list[str], pads: int) -> None:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    padding = {f"[PAD{index}]": index for index in range(len(tokens), len(tokens) + pads)}
    assert vocabulary_fingerprint(vocabulary | padding) == vocabulary_fingerprint(vocabulary)
    named = {f"[PAD{index + 1}]": index for index in range(len(tokens), len(tokens) + pads)}
    assert not pads or vocabulary_fingerprint(vocabulary | named) != vocabulary_fingerprint(vocabulary)


def test_a_shipped_draft_is_used_until_a_whole_model_is_downloaded(
    make: Make,
    registry: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target, shipped = make("target", size=4_000_000), tmp_path / "shipped"
    shipped.mkdir()
    (shipped / "config.json").write_text(
        json.dumps({"speculators_model_type": "eagle3", "speculators_config": {}})
    )
    monkeypatch.setattr(drafts, "TRAINED", {str(target): str(shipped)})
    fingerprint = drafts.tokenizer_facts(target).fingerprint
    caplog.set_level(logging.INFO)
    registry(known("fits", fingerprint, 2))
    for states, group in (
        (True, {"drafter": "ngram+eagle", "model": str(shipped)}),
        (False, {"drafter": "ngram"}),
    ):
        monkeypatch.setattr(drafts, "_returns_states", lambda model, target, states=states: states)
        assert draft_group(str(target)) == group
    assert "`specinfer pull fits` (2 MB)" in caplog.text
    assert f"{shipped} is not used: the generic executor returns no hidden states" in caplog.text
    registry(known("fits", fingerprint, 2), pulled=("fits",))
    assert drafts.automatic_draft(str(target)) == "fits"


def test_a_whole_model_is_proposed_if_the_models_own_layer_is_not_used(
    make: Make,
    registry: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = make("target", size=4_000_000)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(drafts, "has_own_mtp", lambda directory: True)
    registry(known("fits", drafts.tokenizer_facts(target).fingerprint, 2))
    for states, used in ((True, str(target)), (False, "")):
        monkeypatch.setattr(drafts, "_returns_states", lambda model, target, states=states: states)
        assert drafts.automatic_draft(str(target)) == used
        assert ("`specinfer pull fits`" in caplog.text) == (not states)
