"""Prompts for texts with a gap: their parts between a model's special tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specinfer.errors import IncompatibleError

_GAPS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
"""Names of the tokens before prefix, suffix and answer.

They are those of Qwen, StarCoder, Granite, GLM, DeepSeek and CodeLlama.
"""
_FILES = (("<|repo_name|>", "<|file_sep|>"), ("<reponame>", "<file_sep>"), ("<repo_name>", "<file_sep>"))
"""Names of the tokens before a repository's and a file's name."""
_ENDS = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|endoftext|>", "<EOT>", "▁<EOT>")
"""Further tokens that end an answer."""
_REPOSITORY, _CURRENT = "repository", "current"
"""Names that stand for the caller's repository and file."""


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Ids of a model's tokens for texts with a gap."""

    gap: tuple[int, int, int]
    """Tokens before prefix, suffix and answer."""
    files: tuple[int, int] | None
    """Tokens before a repository's and a file's name."""
    ends: frozenset[int]
    """Tokens that end an answer, these included."""

    def prompt(
        self,
        encode: Callable[[str], list[int]],
        texts: tuple[str, str, str],
        files: Sequence[tuple[str, str]],
    ) -> list[int]:
        """Return a prompt's token ids, in the order of llama-server and Qwen2.5-Coder.

        Args:
            encode: tokenizes a part of a text.
            texts: prefix, suffix, and the answer's beginning.
            files: names and texts of other files.
        """
        ids = list[int]()
        if files and self.files is not None:
            repository, file = self.files
            ids += [repository, *encode(f"{_REPOSITORY}\n")]
            for name, text in (*files, (_CURRENT, "")):
                ids += [file, *encode(f"{name}\n"), *encode(text)]
        elif files:
            ids += encode("".join([f"{name}\n{text}\n" for name, text in files]))
        for mark, text in zip(self.gap, texts, strict=True):
            ids += [mark, *encode(text)]
        return ids


def infill_tokens(ids: Mapping[str, int]) -> InfillTokens | None:
    """Return a model's tokens for texts with a gap, from its added tokens; None without them."""
    gap = next((names for names in _GAPS if ids.keys() >= set(names)), None)
    if gap is None:
        return None
    files = next((names for names in _FILES if ids.keys() >= set(names)), None)
    before, between, after = (ids[name] for name in gap)
    ends = [ids[name] for name in (*gap, *(files or ()), *_ENDS) if name in ids]
    pair = None if files is None else (ids[files[0]], ids[files[1]])
    return InfillTokens((before, between, after), pair, frozenset(ends))


def required(tokens: InfillTokens | None) -> InfillTokens:
    """Return the tokens; refuse a model without them."""
    if tokens is None:
        names = " or ".join(gap[0] for gap in _GAPS[:2])
        raise IncompatibleError(f"infill: this model has no fill-in-the-middle tokens, such as {names}")
    return tokens
