"""The tokenizer of a GGUF file: first and last tokens, the space before texts, ends of answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from specinfer.errors import IncompatibleError
from specinfer.model.weights.config_files import load_config, load_transformers_config
from specinfer.model.weights.convert import convert_gguf
from specinfer.request.default_sampling import default_sampling
from specinfer.text.tokenizer import Tokenizer
from tests.support.models.gguf_files import Gguf
from tests.unit.model.checkpoints.test_gguf import random_llama
from tests.unit.test_tokenizer_files import ALPHABET, PIECES, WORDS

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
TURNS = ["<|im_end|>", "<|eot_id|>", "<mark>"]


def pieces(**keys: Any) -> dict[str, Any]:
    """Return metadata of a vocabulary like Llama 2's, with names of turns at its end."""
    tokens = [*WORDS, *PIECES, *TURNS]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(PIECES) + len(TURNS))]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    given = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": [-float(i) for i, _ in enumerate(tokens)],
    }
    return {f"tokenizer.ggml.{name}": value for name, value in {**given, **ids, **keys}.items()}


def bytewise(**keys: Any) -> dict[str, Any]:
    """Return metadata of a vocabulary like GPT-2's."""
    tokens = ["<s>", "</s>", *ALPHABET, "Th", "The", "he", *TURNS]
    types = [CONTROL, CONTROL, *[NORMAL] * (len(tokens) - 5), CONTROL, CONTROL, USER]
    ids = {"bos_token_id": 0, "eos_token_id": 1}
    given = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": tokens,
        "token_type": types,
        "merges": ["h e", "T h"],
    }
    return {f"tokenizer.ggml.{name}": value for name, value in {**given, **ids, **keys}.items()}


def converted(path: Path, metadata: dict[str, Any]) -> Path:
    file = Gguf.of(random_llama(vocab_size=len(metadata["tokenizer.ggml.tokens"])))
    file.others |= {name: value for name, value in metadata.items() if value is not None}
    directory = path / "model"
    directory.mkdir()
    convert_gguf(file.write(path / "model.gguf"), directory)
    return directory


@pytest.mark.parametrize("bos", [None, True, False])
@pytest.mark.parametrize("eos", [None, True, False])
@pytest.mark.parametrize("make", [pieces, bytewise])
def test_texts_begin_and_end_with_the_tokens_of_the_file(
    make: Any, bos: Any, eos: Any, tmp_path: Path
) -> None:
    """Without these keys, texts start with BOS in vocabularies like Llama's, and never end with EOS."""
    metadata = make(add_bos_token=bos, add_eos_token=eos)
    tokenizer = Tokenizer.load(converted(tmp_path, metadata))
    first, last = (metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos"))
    inner = tokenizer.encode_part("The sky")
    assert tokenizer.encode("The sky") == [*[first] * (bos is not False), *inner, *[last] * (eos is True)]
    assert not {first, last} & set(inner)


@pytest.mark.parametrize(
    ("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), (None, False)]
)
def test_words_that_are_tokens_are_not_split_into_merges(
    pre: str | None, begins: bool, tmp_path: Path
) -> None:
    """In these splits a word that is a token stays whole; merges alone would give "T", "he", as "h e" comes first."""
    tokenizer = Tokenizer.load(converted(tmp_path, bytewise(pre=pre)))
    names = [tokenizer.text_of_token(token) for token in tokenizer.encode("The")]
    assert names == (["<s>", "The"] if begins else ["T", "he"])


@pytest.mark.parametrize("prefix", [None, True, False])
def test_the_space_before_a_text_is_as_in_the_file(prefix: bool | None, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(converted(tmp_path, pieces(add_space_prefix=prefix, add_bos_token=False)))
    ids = tokenizer.encode("sky")
    assert (ids[0] == WORDS.__len__() + PIECES.index("▁")) == (prefix is not False)
    assert tokenizer.decode(ids) == "sky"
    assert tokenizer.decode(tokenizer.encode(" sky")) == ("sky" if prefix is not False else " sky")


ENDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "keys": (
        {"eot_token_id": 5, "eom_token_id": 9},
        ["</s>", "<0x02>", "<0x06>", "<|im_end|>", "<|eot_id|>"],
    ),
    "names": ({}, ["</s>", "<|im_end|>", "<|eot_id|>"]),
    "no end of a sequence": ({"eos_token_id": None}, ["</s>", "<|im_end|>", "<|eot_id|>"]),
}


@pytest.mark.parametrize("case", ENDS)
def test_all_ends_of_an_answer_are_read(case: str, tmp_path: Path) -> None:
    keys, ends = ENDS[case]
    directory = converted(tmp_path, pieces(**keys))
    names = [*WORDS, *PIECES, *TURNS]
    assert [names[token] for token in load_config(directory).eos_token_ids] == ends
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.encode_part("<|im_end|>") == [names.index("<|im_end|>")]
    assert tokenizer.decode([names.index("<|im_end|>")]) == ""


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["<|return|>", "<|call|>", "<|end|>"], {"<|return|>", "<|call|>"}),
        (["<|return|>", "<|end|>"], {"<|return|>", "<|end|>"}),
        (["</s>"], set()),
    ],
)
def test_ends_of_messages_are_not_ends_of_turns(tokens: list[str], ends: set[str], tmp_path: Path) -> None:
    metadata = bytewise(eos_token_id=2)
    metadata["tokenizer.ggml.tokens"] += tokens if tokens != ["</s>"] else []
    metadata["tokenizer.ggml.token_type"] += [NORMAL] * len(tokens if tokens != ["</s>"] else [])
    if tokens == ["</s>"]:
        metadata["tokenizer.ggml.token_type"][1] = NORMAL
    actual = load_config(converted(tmp_path, metadata)).eos_token_ids
    names = metadata["tokenizer.ggml.tokens"]
    plain = {names[2], "<|im_end|>", "<|eot_id|>"} | ({"</s>"} if tokens != ["</s>"] else set())
    assert {names[token] for token in actual} == plain | ends


@pytest.mark.parametrize(
    ("make", "keys", "reason"),
    [
        (bytewise, {"pre": "new-split"}, "tokenizer.ggml.pre = 'new-split'"),
        (bytewise, {"add_space_prefix": True}, "tokenizer.ggml.add_space_prefix = True"),
        (pieces, {"remove_extra_whitespaces": True}, "tokenizer.ggml.remove_extra_whitespaces = True"),
        (pieces, {"model": "rwkv"}, "rwkv"),
        (pieces, {"scores": None}, "scores"),
        (pieces, {"scores": 7}, "cannot read .*model.gguf as a GGUF file: TypeError"),
        (pieces, {"eos_token_id": 4_000_000_000}, "eos_token_id = 4000000000"),
    ],
)
def test_unsupported_metadata_is_refused(
    make: Any, keys: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(IncompatibleError, match=reason):
        converted(tmp_path, make(**keys))


def test_tokenizer_files_next_to_the_gguf_file_are_ignored(tmp_path: Path) -> None:
    other = {"bos_token": "<|other|>", "chat_template": "{{ 'other' }}", "extra_special_tokens": ["sky"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(other))
    directory = converted(tmp_path, pieces())
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert not Tokenizer.load(directory).has_chat_template


def test_a_template_for_tools_is_kept(tmp_path: Path) -> None:
    templates = {
        "tokenizer.chat_template": "{{ messages[0].content }}",
        "tokenizer.chat_template.tool_use": "{{ tools[0].name }}",
    }
    tokenizer = Tokenizer.load(converted(tmp_path, pieces() | templates))
    turns = [{"role": "user", "content": "The"}]
    assert tokenizer.decode(tokenizer.encode_chat(turns)) == "The"
    assert tokenizer.decode(tokenizer.encode_chat(turns, [{"name": "sky"}])) == "sky"


def test_a_conversation_has_at_most_one_bos(tmp_path: Path) -> None:
    """A template that writes BOS gets no second one; a template without BOS gets none, as in `transformers`."""
    for number, (template, count) in enumerate(
        [("{{ bos_token }}{{ messages[0].content }}", 1), ("{{ messages[0].content }}", 0)]
    ):
        place = tmp_path / str(number)
        place.mkdir()
        directory = converted(place, pieces(add_bos_token=True) | {"tokenizer.chat_template": template})
        ids = Tokenizer.load(directory).encode_chat([{"role": "user", "content": "The sky"}])
        assert ids.count(1) == count
        assert json.loads((directory / "tokenizer_config.json").read_text())["bos_token"] == "<s>"


def test_defaults_of_sampling_are_those_of_the_file(tmp_path: Path) -> None:
    keys = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.25,
    }
    directory = converted(tmp_path, pieces() | keys)
    assert default_sampling(directory) == {"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.25}
    _, generation = load_transformers_config(directory)
    assert generation is not None
    bad = tmp_path / "bad"
    bad.mkdir()
    with pytest.raises(IncompatibleError, match="top_p = 7"):
        converted(bad, pieces() | {"general.sampling.top_p": 7.0})
