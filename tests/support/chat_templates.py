"""Chat templates like those of some families, and a tokenizer with their marks."""

from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from specinfer.text.chat.forms import TEXT_MARKS
from specinfer.text.tokenizer import Tokenizer

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
END = 256
"""Token id that ends an answer."""


def template_text(family: str) -> str:
    return (DIRECTORY / f"{family}.jinja").read_text(encoding="utf-8")


def byte_tokenizer(template: str = "", marks: bool = True) -> Tokenizer:
    """Return a tokenizer of bytes with special tokens; with `marks`, also the marks of calls and reasoning."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE({sign: number for number, sign in enumerate(signs)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["<|end|>", *NAMES])
    if marks:
        fast.add_special_tokens([AddedToken(mark, special=True) for mark in sorted(TEXT_MARKS)])
    return Tokenizer(fast, template, SPECIALS)
