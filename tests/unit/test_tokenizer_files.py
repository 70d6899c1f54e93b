"""Tokenizers are read from all of their files, like in `transformers`."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.packed.scheme import read_scheme
from specinfer.model.weights.source import algorithm_of, has_own_mtp, is_draft_checkpoint
from specinfer.scheduling.text import TextPiece, TextStream
from specinfer.text.detokenizer import Detokenizer
from specinfer.text.special_tokens import tokenizer_end
from specinfer.text.tokenizer import Tokenizer
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import tiny_transformers

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES = ["▁", "▁The", "▁sky", "▁is", "▁blue", "!", "T", "h", "e", "b", "l", "u", "s", "i", "k", "y", "ä"]


def byte_level() -> Fast:
    fast = Fast(models.BPE({"<s>": 0, "</s>": 1} | {char: i for i, char in enumerate(ALPHABET, 2)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["<s>", "</s>"])
    return fast


def sentencepiece() -> Fast:
    """Return a tokenizer like Llama 2's: a space before the text, and bytes for unknown characters."""
    vocabulary = {word: i for i, word in enumerate([*WORDS, *PIECES])}
    fast = Fast(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    stages = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(stages)
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    return fast


def metaspace() -> Fast:
    fast = Fast(models.BPE({word: i for i, word in enumerate([*WORDS, *PIECES])}, [], unk_token="<unk>"))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    return fast


KINDS = {"byte_level": byte_level, "sentencepiece": sentencepiece, "metaspace": metaspace}
TEXTS = st.text(alphabet="The sky is blue!ä日🦙\n", max_size=24)


@cache
def both(kind: str) -> tuple[Tokenizer, Any]:
    """Return our tokenizer of a kind, and that of `transformers`."""
    return Tokenizer(KINDS[kind](), None, {}), PreTrainedTokenizerFast(tokenizer_object=KINDS[kind]())


def check_text(kind: str, data: Any) -> None:
    """Compare the streamed text after a prompt, up to a stop string, with the text of all tokens by `transformers`."""
    tokenizer, theirs = both(kind)
    text = data.draw(TEXTS)
    ids = tokenizer.encode(text)
    assert ids == theirs(text)["input_ids"]
    cut = data.draw(st.integers(0, len(ids)))
    whole, prompt = (theirs.decode(part, skip_special_tokens=True) for part in (ids, ids[:cut]))
    if "\ufffd" in prompt:  # a prompt cut within a character has no text of its own
        return
    rest = whole[len(prompt) :]
    start = data.draw(st.integers(0, len(rest)))
    stop = data.draw(st.sampled_from(["", "yi", rest[start : start + data.draw(st.integers(1, 5))]]))
    stream = TextStream(tokenizer, (stop,) if stop else (), [1, *ids[:cut]])
    pieces, at = list[TextPiece](), cut
    while at < len(ids) and not (pieces and pieces[-1].stopped):
        size = data.draw(st.integers(1, 4))
        pieces.append(stream.push(ids[at : at + size], last=at + size >= len(ids)))
        at += size
    assert "".join(piece.text for piece in pieces) == (rest.partition(stop)[0] if stop else rest)
    assert any(piece.stopped for piece in pieces) == (stop in rest and stop != "")


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=300)
def test_prompt_and_answer_are_the_whole_text(kind: str, data: Any) -> None:
    """900 texts: the prompt's text and the streamed text together are the whole text, up to a stop string."""
    check_text(kind, data)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=10_000)
def test_prompt_and_answer_are_the_whole_text_on_many_texts(kind: str, data: Any) -> None:
    check_text(kind, data)


def test_a_stop_string_that_is_a_special_token_is_a_stop_token() -> None:
    tokenizer = Tokenizer(byte_level(), None, {})
    ids = tokenizer.encode("so")
    piece = TextStream(tokenizer, ("</s>",), [5]).push([*ids, 1, *ids], last=True)
    assert (piece.text, piece.used, piece.stopped) == ("so", 3, True)
    assert TextStream(tokenizer, ("</s>",), [5]).skip([*ids, 1])
    other = TextStream(tokenizer, ("<s>",), [5]).push([*ids, 1, *ids], last=True)
    assert (other.text, other.used, other.stopped) == ("soso", 5, False)


def test_text_after_an_unknown_prompt_keeps_its_space() -> None:
    tokenizer = Tokenizer(sentencepiece(), None, {})
    blue = tokenizer.encode("blue")
    assert TextStream(tokenizer, ()).push(blue, last=True).text == " blue"
    assert Detokenizer(tokenizer, [1]).push(blue) == "blue", "a prompt of special tokens has no text"


def write(directory: Path, fast: Fast, **config: Any) -> Path:
    fast.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_truncation_and_padding_are_ignored(tmp_path: Path) -> None:
    fast, text = byte_level(), "The sky is blue. " * 300
    wanted = fast.encode(text).ids
    fast.enable_truncation(max_length=8)
    fast.enable_padding(length=64, pad_token="<s>")
    tokenizer = Tokenizer.load(write(tmp_path, fast))
    assert tokenizer.encode(text) == wanted
    assert len(tokenizer.encode("ab")) == 2


def test_dropout_is_ignored(tmp_path: Path) -> None:
    fast = Fast(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.9))
    tokenizer = Tokenizer.load(write(tmp_path, fast))
    assert {tuple(tokenizer.encode("ab")) for _ in range(50)} == {(2,)}


def test_tokens_of_the_other_files_are_added_and_special(tmp_path: Path) -> None:
    size = byte_level().get_vocab_size()
    declared = {
        str(size): {"content": "<|turn|>", "special": True, "normalized": False},
        str(size + 1): {"content": "[tool]", "special": False, "normalized": False},
    }
    write(
        tmp_path,
        byte_level(),
        added_tokens_decoder=declared,
        eos_token="<|turn|>",
        bos_token="<s>",
        pad_token="Z",
    )
    tokenizer, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "a<|turn|>b[tool]"
    assert tokenizer.encode(text) == theirs(text)["input_ids"]
    ids = [*tokenizer.encode(text), *tokenizer.encode_part("Z")]
    assert tokenizer.decode(ids) == "ab[tool]"
    assert tokenizer.special_token("<|turn|>") == size == tokenizer_end(tmp_path)
    assert tokenizer.special_token("[tool]") is None
    assert tokenizer._specials == {"bos_token": "<s>", "eos_token": "<|turn|>", "pad_token": "Z"}


def test_a_token_that_would_get_another_id_is_refused(tmp_path: Path) -> None:
    declared = {"3": {"content": "<|turn|>", "special": True}}
    with pytest.raises(IncompatibleError, match=r"<\|turn\|>"):
        Tokenizer.load(write(tmp_path, byte_level(), added_tokens_decoder=declared))


@pytest.mark.parametrize(
    ("config", "end"), [({}, None), ({"eos_token": "</s>"}, 1), ({"eos_token": "<none>"}, None)]
)
def test_the_end_token_of_a_tokenizer(config: dict[str, Any], end: int | None, tmp_path: Path) -> None:
    assert tokenizer_end(write(tmp_path, byte_level(), **config)) == end


def test_ends_of_the_generation_configuration_and_of_the_tokenizer_both_end_an_answer(tmp_path: Path) -> None:
    model = tiny_transformers("llama")
    model.config.save_pretrained(tmp_path)
    write(tmp_path, byte_level(), eos_token="<s>")
    assert load_config(tmp_path).eos_token_ids == (2, 0)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert load_config(tmp_path).eos_token_ids == (5, 7, 0)
    write(tmp_path, byte_level())
    assert load_config(tmp_path).eos_token_ids == (5, 7)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 5, 99_999, -1]}))
    assert load_config(tmp_path).eos_token_ids == (5,), "ids that are no tokens of the model are ignored"


@pytest.mark.parametrize("content", ["{", "[]", '{"eos_token_id": "</s>"}'])
def test_a_generation_configuration_that_is_broken_is_named(content: str, tmp_path: Path) -> None:
    tiny_transformers("llama").config.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises((SettingError, IncompatibleError), match=r"generation_config|eos_token_id"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}),
        ("rope_scaling", "linear"),
        ("num_attention_heads", 5),
        ("rms_norm_eps", "1e-5"),
        ("max_position_embeddings", None),
        ("vocab_size", [97]),
    ],
)
def test_a_configuration_with_impossible_values_is_named(name: str, value: object, tmp_path: Path) -> None:
    config = tiny_transformers("llama").config.to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config | {name: value}))
    with pytest.raises((SettingError, IncompatibleError), match=r"config\.json: "):
        load_config(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "chat_template.json",
        "generation_config.json",
    ],
)
def test_a_file_that_is_nested_too_deeply_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(ascii_tokenizer().to_json())
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / name).write_text('{"a":' * 100_000)
    with pytest.raises((SettingError, IncompatibleError), match=name.replace(".", r"\.")):  # noqa: PT012  # either may raise
        Tokenizer.load(tmp_path)
        load_config(tmp_path)


@pytest.mark.parametrize("reads", [is_draft_checkpoint, has_own_mtp, algorithm_of, read_scheme])
def test_each_reader_of_a_configuration_refuses_deep_ones(
    reads: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(SettingError, match=r"config\.json.*nested too deeply"):
        reads(tmp_path)
