"""Describes a checkpoint's context, end tokens, tokenizer and chat template."""

from collections.abc import Iterator
from pathlib import Path

from specinfer.errors import SpecInferError
from specinfer.model.families.positions import served_positions
from specinfer.model.probe.reference import quiet
from specinfer.model.weights.config_files import eos_token_ids, load_transformers_config
from specinfer.text.tokenizer import Tokenizer

_TEXTS = (
    *(
        "The sky is blue.",
        " The sky",
        "two  blanks",
        "a\n\n b\t",
        "12345 678.9",
        "don't I'LL",
        "x_y(z) == {}",
    ),
    *("Größe, naïve", "日本語 текст", "🦙🇩🇪", "<s> a</s>b", "<|im_start|>user\nhi<|im_end|>", ""),
)


def describe_texts(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield names and values: context length, end tokens, tokenizer, chat template."""
    hf, generation = load_transformers_config(directory)
    text = hf.get_text_config()
    served = served_positions(text)
    whole = getattr(text, "max_position_embeddings", None) or served
    yield "context", f"{served}" if served == whole else f"{served} of {whole} (rope_type = 'longrope')"
    try:
        tokenizer = Tokenizer.load(directory)
    except SpecInferError as error:
        yield "tokenizer", str(error)
        return
    ends = [f"{token} {tokenizer.text_of_token(token)!r}" for token in eos_token_ids(hf, generation)]
    yield "ends", ", ".join(ends) or "none: answers end only at max_tokens"
    yield "tokenizer", _compared(directory, tokenizer)
    yield (
        "conversations",
        tokenizer.chat_problem or ("a template" if tokenizer.has_chat_template else "no template"),
    )


def _compared(directory: Path, tokenizer: Tokenizer) -> str:
    """State whether `transformers` tokenises some texts equally.

    `tokenizer.json` is our reference; `transformers` ignores it for some classes and builds a tokenizer itself.
    """
    from transformers import AutoTokenizer

    try:
        with quiet():
            theirs = AutoTokenizer.from_pretrained(directory)
    except Exception as error:  # noqa: BLE001  # the tokenizer's own code may raise anything
        return f"transformers cannot load it: {type(error).__name__}: {' '.join(str(error).split())}"
    other = [text for text in _TEXTS if tokenizer.encode(text) != theirs(text)["input_ids"]]
    if not other:
        return "as transformers has it"
    return f"as tokenizer.json has it; {type(theirs).__name__} of transformers differs for {other[0]!r}"
