"""Prompts with a gap have the order of Qwen2.5-Coder's page and of llama-server."""

import pytest

from specinfer.errors import IncompatibleError
from specinfer.text.infill import infill_tokens, required

NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
QWEN = {name: number for number, name in enumerate(NAMES, 1000)}


def shown(prompt: list[int]) -> str:
    names = {number: name for name, number in QWEN.items()}
    return "".join([names.get(token) or chr(token) for token in prompt])


def encode(text: str) -> list[int]:
    return list(map(ord, text))


def test_prefix_suffix_and_files_have_their_places() -> None:
    tokens = required(infill_tokens(QWEN))
    plain = tokens.prompt(encode, ("def f(", "return x", "x"), ())
    assert shown(plain) == "<|fim_prefix|>def f(<|fim_suffix|>return x<|fim_middle|>x"
    with_files = tokens.prompt(encode, ("a", "b", ""), [("x.py", "X"), ("y.py", "Y")])
    assert shown(with_files) == (
        "<|repo_name|>repository\n<|file_sep|>x.py\nX<|file_sep|>y.py\nY<|file_sep|>current\n"
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    )
    assert tokens.ends == set(QWEN.values()), "the answer ends where another part would begin"


def test_a_model_without_marks_of_files_reads_them_as_text() -> None:
    tokens = required(infill_tokens({"<fim_prefix>": 1000, "<fim_suffix>": 1001, "<fim_middle>": 1002}))
    prompt = tokens.prompt(encode, ("a", "b", ""), [("x.py", "X")])
    assert prompt == [*encode("x.py\nX\n"), 1000, ord("a"), 1001, ord("b"), 1002]


def test_a_model_without_all_three_tokens_is_refused() -> None:
    assert infill_tokens({"<|fim_prefix|>": 5}) is None
    with pytest.raises(IncompatibleError, match="no fill-in-the-middle tokens"):
        required(None)
