"""Chat templates like those of some families, and a tokenizer with their marks."""

from pathlib import Path

from specinfer.text.chat.forms import TEXT_MARKS
from specinfer.text.tokenizer import Tokenizer
from tests.support.models.byte_tokenizer import byte_tokenizer

DIRECTORY = Path(__file__).parents[1] / "data" / "templates"
FAMILIES = sorted(path.stem for path in DIRECTORY.glob("*.jinja"))
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
NAMES = [
    *SPECIALS.values(),
    *("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("<start_of_turn>", "<end_of_turn>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
]


def template_text(family: str) -> str:
    return (DIRECTORY / f"{family}.jinja").read_text(encoding="utf-8")


def with_template(template: str) -> Tokenizer:
    """Return a tokenizer of bytes with special tokens and the marks of calls and reasoning."""
    return Tokenizer(byte_tokenizer(["<|end|>", *NAMES, *sorted(TEXT_MARKS)]), template, SPECIALS)
