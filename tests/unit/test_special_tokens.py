"""Special tokens in the files next to `tokenizer.json` are read like in `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from specinfer.errors import IncompatibleError, SettingError
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.special_tokens import tokenizer_end
from specinfer.text.tokenizer import Tokenizer
from tests.unit.test_tokenizer_files import byte_level, metaspace

SIZE = byte_level().get_vocab_size()
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
TEMPLATE = (
    "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ image_token }}|{{ boi_token }}|"
    "{{ additional_special_tokens }}|{{ documents is defined }}|{{ tools is none }}"
)
TEXTS = ["a<s>b", "x <m> y", "<new>", "<|end|>!", "<pad>", "Z B <a><b>", "The cat Them", "日 [PAD]"]
FILES: dict[str, dict[str, Any]] = {
    "roles": {"config": {"bos_token": "<s>", "eos_token": "</s>"}},
    "roles that are null": {"config": {"bos_token": None, "eos_token": None}},
    "a model's own roles": {"config": {"bos_token": "<s>", "image_token": "Z", "boi_token": "B"}},
    "extra tokens by role": {"config": {"extra_special_tokens": {"image_token": "Z"}}},
    "extra tokens": {"config": {"extra_special_tokens": ["<a>", "<b>"]}},
    "additional tokens": {"config": {"additional_special_tokens": ["<a>", "<b>"]}},
    "tokens that the vocabulary lacks": {"config": {"eos_token": "<|end|>", "pad_token": "[PAD]"}},
    "a map": {"map": {"bos_token": "<s>", "eos_token": {"content": "</s>", **FLAGS}}},
    "additional tokens of a map": {"map": {"bos_token": "<s>", "additional_special_tokens": ["<new>"]}},
    "a map that contradicts": {"config": {"eos_token": "<s>"}, "map": {"eos_token": "</s>"}},
    "a map and declared tokens": {
        "config": {"added_tokens_decoder": {str(SIZE): {"content": "<pad>", "special": True, **FLAGS}}},
        "map": {"pad_token": "<pad>", "eos_token": "</s>"},
    },
    "added tokens": {"added": {"<new>": SIZE}},
    "added tokens that are special": {"added": {"<new>": SIZE}, "map": {"eos_token": "<new>"}},
    "names in texts": {"config": {"bos_token": "<s>", "split_special_tokens": True}},
    "blanks around": {
        "config": {
            "added_tokens_decoder": {
                str(SIZE): {"content": "<m>", "special": True, **FLAGS, "lstrip": True, "rstrip": True}
            }
        }
    },
    "whole words": {
        "config": {
            "added_tokens_decoder": {
                str(SIZE): {
                    "content": "The",
                    "special": False,
                    **FLAGS,
                    "normalized": True,
                    "single_word": True,
                }
            }
        }
    },
}


def write(directory: Path, files: dict[str, Any]) -> Path:
    byte_level().save(str(directory / "tokenizer.json"))
    config = files.get("config", {}) | {"chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    for name, file in (("map", "special_tokens_map"), ("added", "added_tokens")):
        if name in files:
            (directory / f"{file}.json").write_text(json.dumps(files[name]))
    return directory


@pytest.mark.parametrize("case", FILES)
def test_tokens_and_conversations_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    directory = write(tmp_path, FILES[case])
    ours, theirs = Tokenizer.load(directory), AutoTokenizer.from_pretrained(directory)
    turns = [{"role": "user", "content": "x"}]
    chat = theirs.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    assert ours.encode_chat(turns) == chat
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    if theirs.eos_token in byte_level().get_vocab() or "added" in FILES[case]:
        assert tokenizer_end(directory) == theirs.eos_token_id


def test_an_end_token_is_found_in_a_vocabulary(tmp_path: Path) -> None:
    """Like in `transformers`, if it is not among the added tokens."""
    fast = metaspace()
    stored = json.loads(fast.to_str()) | {"added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    assert tokenizer_end(tmp_path) == 2
    pieces = [[name, 0.0] for name, _ in sorted(fast.get_vocab().items(), key=lambda item: item[1])]
    stored["model"] = {"type": "Unigram", "unk_id": 0, "vocab": pieces}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    assert tokenizer_end(tmp_path) == 2


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map", "added_tokens", "tokenizer"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_file_that_is_broken_is_named(name: str, content: str, tmp_path: Path) -> None:
    directory = write(tmp_path, {})
    (directory / f"{name}.json").write_text(content)
    with pytest.raises((SettingError, IncompatibleError), match=f"{name}.json"):
        Tokenizer.load(directory)


def test_tokens_beyond_the_models_vocabulary_do_not_prevent_constraints(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, {"config": {"pad_token": "[PAD]"}}))
    assert tokenizer.vocab_size == SIZE + 1
    Compiler(tokenizer.to_json(), SIZE, [1])
