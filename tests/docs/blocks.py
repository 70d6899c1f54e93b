"""Find the code blocks of the pages, and the simple commands of shell blocks."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
NEEDS = re.compile(r"^ *# needs (.+)$", re.MULTILINE)
"""Comment that states why tests do not run a block, such as "# needs a cluster"."""
_SEPARATORS = {";", "&", "&&", "|", "||", "(", ")", "{", "}", "do", "done", "then", "fi"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page; `language` is empty if the block is indented instead of fenced."""

    page: str
    line: int
    language: str
    text: str

    @property
    def needs(self) -> str | None:
        """Return the requirement that the block's comment states, which tests lack; or None."""
        match = NEEDS.search(self.text)
        return match[1] if match else None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    return [
        Block(page.name, token.map[0] + 1, token.info.strip(), token.content)
        for token in MarkdownIt().parse(page.read_text())
        if token.type in ("fence", "code_block") and token.map
    ]


def script(block: Block) -> str:
    """Return the typed lines of a shell block, without prompts and output."""
    if block.language == "console":
        return "\n".join(line[2:] for line in block.text.splitlines() if line.startswith("$ "))
    return block.text


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every simple command, without assignments and redirections."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in _SEPARATORS:
                words.append(word)
                continue
            if command := _program_first(words):
                yield command
            words = []


def _program_first(words: list[str]) -> list[str]:
    """Return a command from its program on, without redirections."""
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in ("export", "for")):
        if words[0] in ("export", "for"):
            return []
        words = words[1:]
    for place, word in enumerate(words):
        if set(word) <= set("<>"):
            return words[:place]
    return words
