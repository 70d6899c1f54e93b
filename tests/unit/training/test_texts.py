"""Training data from text on the machine: found, cleaned, put into the template, kept and read back."""

from pathlib import Path

import numpy as np
import pytest

from specinfer.errors import SettingError
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.corpus import Continuation
from specinfer.training.reading import reader
from specinfer.training.reading.kept import HELD_OUT, OWN, READ, Bytes, KeptTexts
from specinfer.training.reading.reader import as_answer, read_texts
from specinfer.training.reading.texts import LONGEST, FoundText, cleaned, pieces, pieces_of_text
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import runner_of, tiny_transformers

LAYERS = (1, 2, 3)
PAGE = "The reader of this page, who has time, reads one sentence after the other. " * 6


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_a_documented_function_answers_the_request_of_its_docstring() -> None:
    source = '''
class Shelf:
    @property
    def full(self) -> bool:
        """Return whether the shelf is full.

        More of it.
        """
        return self.count >= self.size and not self.broken and self.size > 0  # all of them
'''
    (piece,) = [p for p in pieces_of_text(source, Path("shelf.py")) if "`full`" in p.turn]
    assert piece.turn == "Write a Python function `full`: Return whether the shelf is full."
    assert piece.answer.startswith('```python\n@property\ndef full(self) -> bool:\n    """Return')
    assert piece.answer.endswith("# all of them\n```")


def test_markup_is_removed_and_tables_are_refused() -> None:
    page = f"<html><head><title>t</title></head><script>x()</script><h1>Shelves</h1><p>{PAGE}</p></html>"
    text = cleaned(page, ".html")
    assert text is not None
    assert text.startswith("Shelves\n\nThe reader"), text
    assert not set(text) & set("<>")
    assert cleaned("\n".join("0x1f, 23, 99.5," for _ in range(40)), ".txt") is None
    assert cleaned("short", ".md") is None


def test_long_texts_become_parts_under_their_titles() -> None:
    text = "Shelves\n\n" + "\n\n".join(f"Part {i}\n{PAGE}" for i in range(12))
    found = pieces_of_text(text, Path("shelves.md"))
    assert len(found) > 2
    assert found[0].turn == "Explain: Shelves"
    assert all(len(piece.answer) <= LONGEST for piece in found)
    assert all(piece.turn.startswith("Explain: Part ") for piece in found[1:])


def test_exact_duplicates_are_dropped_and_the_order_follows_the_seed(tmp_path: Path) -> None:
    texts = {f"a{i}_md": f"Page {i}\n\n{PAGE}" for i in range(6)}
    write(tmp_path, **texts, copy_md=texts["a3_md"], code_py="x = 1\n" * 100, blank_py="\n", image_png="P")
    found = [*pieces([tmp_path], 0)]
    assert len({piece.digest for piece in found}) == len(found) == 7
    assert found == [*pieces([tmp_path], 0)]
    assert found != [*pieces([tmp_path], 1)]
    with pytest.raises(SettingError, match=r"text = .*nowhere"):
        next(pieces([tmp_path / "nowhere"], 0))


def test_a_text_is_the_assistants_answer_in_the_served_template() -> None:
    tokenizer = ascii_tokenizer()
    piece = FoundText("Explain: shelves", PAGE)
    turn = as_answer(tokenizer, piece, [2], 512)
    assert turn is not None
    expected = tokenizer.encode_chat([{"role": "user", "content": piece.turn}])
    assert list(turn.item.prompt) == expected
    assert turn.item.output[-1] == 2
    assert tokenizer.decode(turn.item.output[:-1]) == PAGE
    cut = as_answer(tokenizer, piece, [2], len(expected) + 20)
    assert cut is not None
    assert cut.item.output == turn.item.output[:20]
    assert as_answer(tokenizer, piece, [2], len(expected) + 5) is None
    plain = as_answer(Tokenizer(tokenizer._fast, {}, {}), piece, [2], 512)
    assert plain is not None
    assert plain.item.prompt == (2,), "a model without template reads plain text"


def test_bytes_keep_small_numbers_next_to_a_large_one() -> None:
    numbers = np.random.default_rng(0).normal(size=(5, 3, 64)).astype(np.float32)
    numbers[:, :, 7] = 5_000
    error = np.abs(Bytes.of(numbers).numbers() - numbers)
    assert error[..., 32:].max() < 0.02
    assert error[..., 7].max() < 1
    assert not Bytes.of(np.zeros((2, 48), np.float32)).numbers().any()


def test_kept_states_are_exact_in_one_percent_at_every_scale(tmp_path: Path) -> None:
    """Gemma's states reach 1e5, and those after few layers of other families are small."""
    kept, item = KeptTexts(tmp_path, "target", LAYERS), Continuation((3, 4), (5, 6, 7))
    scales = np.array([1e-3, 1.0, 1e3, 1e6], np.float32)[:, None, None]
    states = scales * np.random.default_rng(0).normal(size=(4, 3, 64)).astype(np.float32)
    kept.keep("abc", item, states)
    error = np.abs(kept.text("abc", item).states() - states).max((1, 2)) / scales[:, 0, 0]
    assert error.max() < 0.02


def test_states_are_the_targets_and_a_rerun_reads_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PASS_TOKENS", 200)  # several passes
    runner, tokenizer = runner_of(tiny_transformers("llama")), ascii_tokenizer()
    found = [FoundText("", f"{i} {PAGE}"[:90]) for i in range(6)]
    kept = KeptTexts(tmp_path, "target", LAYERS)
    first = read_texts(runner, tokenizer, found[:3], kept, 60)
    again = read_texts(runner, tokenizer, found, kept, 60)
    assert first == again == sum(len(t.item.prompt) + len(t.item.output) for t in kept.texts()) / 2
    for text in kept.texts():
        assert text.kind == READ
        tokens = (text.item.prompt + text.item.output)[:-1]
        segment = reader.Segment(runner.open(), tokens)
        _, (states,) = runner.forward_with_features([segment], LAYERS)
        runner.cache.release(segment.sequence)
        np.testing.assert_allclose(text.states(), states.float().numpy(), atol=0.06, rtol=0.03)
    assert not read_texts(runner, tokenizer, found, kept, 60)


def test_reading_ends_with_its_time_and_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PASS_TOKENS", 1)  # a pass for each text
    runner, tokenizer = runner_of(tiny_transformers("llama")), ascii_tokenizer()
    found = [FoundText("", f"{i} {PAGE}"[:90]) for i in range(6)]
    for name, options in (("time", {"seconds": 0.0}), ("bytes", {"seconds": 60.0, "max_bytes": 1})):
        kept = KeptTexts(tmp_path / name, "target", LAYERS)
        read_texts(runner, tokenizer, found, kept, **options)
        assert len([*kept.texts()]) == 1


def test_states_of_another_target_or_of_other_layers_are_refused(tmp_path: Path) -> None:
    kept = KeptTexts(tmp_path, "target", LAYERS)
    item = Continuation((3, 4), (5, 6, 7))
    for kind in (OWN, HELD_OUT):
        kept.keep("abc", item, np.ones((4, 3, 8), np.float32), kind)
    assert sorted((text.kind, text.item) for text in kept.texts()) == [(HELD_OUT, item), (OWN, item)]
    assert not kept.has("abc"), "a text of this name was not read"
    with pytest.raises(SettingError, match=r"work = .*has states of"):
        KeptTexts(tmp_path, "other", LAYERS)
    with pytest.raises(SettingError, match=r"work = .*has states of"):
        KeptTexts(tmp_path, "target", (0, 3))
