"""Find code and documentation on this machine, as answers to short user turns.

    code     functions and classes with a docstring, which the user turn asks for; parts of other source files
    prose    parts of documentation, explained under their title

A file's pieces are spread over the whole, so that any beginning of the pieces is a random sample.
"""

import ast
import hashlib
import random
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from specinfer.errors import SettingError

CODE = {
    ".py": "python",
    ".js": "javascript",
    ".ts": "typescript",
    ".c": "c",
    ".cpp": "cpp",
    ".rs": "rust",
    ".go": "go",
    ".java": "java",
    ".sh": "bash",
    ".sql": "sql",
}
"""Languages of source files by suffix, as Markdown names them."""
PROSE = (".html", ".htm", ".md", ".rst", ".txt")
CODE_SHARE = 0.7
"""Share of code in the pieces."""
PIECES_OF_A_FILE = 6
SHORTEST, LONGEST = 160, 1800
"""Characters of a piece."""
_FILE_BYTES = range(400, 400_000)
_LONG_LINE = 400
_LEAST_LETTERS = 0.55
"""Minimum share of letters and blanks, which tables and encoded data do not reach."""
_RAW_MARKS = re.compile(r"<[a-z!/][^>]*>|^\s*(\.\. |:[a-z]+:|\|.*\|$|[=\-~^#*+]{4,}$)", re.M)
_DOCUMENTATION = Path("/usr/share/doc")
PACKAGES = "python3-doc, python-pandas-doc, sqlite3-doc, nodejs-doc"
"""Debian packages of documentation, for machines with little of it."""
T = TypeVar("T")


class FoundText(NamedTuple):
    turn: str
    """Text of the user."""
    answer: str

    @property
    def digest(self) -> str:
        return hashlib.blake2b(" ".join(self.answer.split()).encode(), digest_size=8).hexdigest()


def machine_folders() -> list[Path]:
    """Return the folders that are read if none are given."""
    paths = sysconfig.get_paths()
    folders = [Path(paths[name]) for name in ("purelib", "platlib", "stdlib")] + [_DOCUMENTATION]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def text_files(places: Sequence[Path], seed: int) -> tuple[list[Path], list[Path]]:
    """Return the files of code and of prose at these places, in random order.

    Raises:
        SettingError: if there is no text at one of the places.
    """
    code, prose = set[Path](), set[Path]()
    for place in places:
        found = [place] if place.is_file() else sorted(place.rglob("*")) if place.is_dir() else []
        of_code = [path for path in found if path.suffix in CODE]
        of_prose = [path for path in found if path.suffix in PROSE]
        if not of_code and not of_prose:
            raise SettingError("text", str(place), f"has no files of {' '.join((*CODE, *PROSE))}")
        code.update(of_code)
        prose.update(of_prose)
    rng = random.Random(seed)
    return (rng.sample(sorted(code), len(code)), rng.sample(sorted(prose), len(prose)))


def pieces(places: Sequence[Path], seed: int) -> Iterator[FoundText]:
    """Yield distinct pieces of code and prose until one kind ends, then the others."""
    code, prose = (_distinct(_pieces_of(files, seed)) for files in text_files(places, seed))
    rng = random.Random(seed)
    while True:
        chosen, other = (code, prose) if rng.random() < CODE_SHARE else (prose, code)
        piece = next(chosen, None) or next(other, None)
        if piece is None:
            return
        yield piece


def _distinct(found: Iterable[FoundText]) -> Iterator[FoundText]:
    seen = set[str]()
    for piece in found:
        if (digest := piece.digest) not in seen:
            seen.add(digest)
            yield piece


def _pieces_of(files: Iterable[Path], seed: int) -> Iterator[FoundText]:
    for path in files:
        text = read_clean(path)
        if text is None:
            continue
        found = pieces_of_text(text, path)
        yield from islice(random.Random(f"{seed}/{path.name}").sample(found, len(found)), PIECES_OF_A_FILE)


def read_clean(path: Path) -> str | None:
    """Return a file's text without markup and empty stretches; None if it is no text."""
    try:
        if path.stat().st_size not in _FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    return cleaned(text, path.suffix)


def cleaned(text: str, suffix: str) -> str | None:
    """Return a text without markup and empty stretches; None for tables and machine output."""
    if suffix in (".html", ".htm"):
        text = _without_tags(text)
    elif suffix in PROSE:
        text = _RAW_MARKS.sub("", text)
    lines = [line.rstrip().expandtabs(4) for line in text.splitlines()]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    regular = sum(char.isalpha() or char.isspace() for char in text)
    if len(text) < SHORTEST or regular < _LEAST_LETTERS * len(text) or "generated by" in text[:500]:
        return None
    return text if max(map(len, lines)) <= _LONG_LINE or suffix in PROSE else None


def pieces_of_text(text: str, path: Path) -> list[FoundText]:
    """Return a cleaned text's pieces, in order."""
    language = CODE.get(path.suffix)
    if language is None:
        return [FoundText(f"Explain: {title}", part) for title, part in _parts(text) if _is_prose(part)]
    documented = [*_documented(text)] if language == "python" else []
    if documented:
        return documented
    asked = f"Write a part of the {language} file {path.name}."
    return [FoundText(asked, fenced(language, part)) for _, part in _parts(text)]


def fenced(language: str, code: str) -> str:
    return f"```{language}\n{code}\n```"


def _documented(source: str) -> Iterator[FoundText]:
    """Yield Python functions and classes with the request that their docstring makes."""
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            tree, lines = ast.parse(source), source.split("\n")
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        code = textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))
        if SHORTEST <= len(code) <= LONGEST and (wanted := ast.get_docstring(node)):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            asked = " ".join(wanted.split("\n\n")[0].split())[:300]
            yield FoundText(f"Write a Python {kind} `{node.name}`: {asked}", fenced("python", code))


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield (title, part): whole paragraphs of at most `LONGEST` characters together."""
    title = text.split("\n", 1)[0].strip("#=-* \t")[:100]
    part = ""
    for paragraph in text.split("\n\n"):
        if part and len(part) + len(paragraph) > LONGEST:
            if len(part) >= SHORTEST:
                yield title, part[:LONGEST]
            part, line = "", paragraph.split("\n", 1)[0].strip("#=-* \t")
            title = line[:100] if line else title
        part = f"{part}\n\n{paragraph}" if part else paragraph
    if len(part) >= SHORTEST:
        yield title, part[:LONGEST]


def _is_prose(part: str) -> bool:
    """Return whether a part has sentences and not only lists of names."""
    return len(re.findall(r"[a-z,;:)] [a-z(]", part)) > len(part) / 40 and ". " in part.replace(".\n", ". ")


_UNSHOWN = ("script", "style", "nav", "head", "footer", "svg")
_BLOCKS = ("p", "div", "li", "pre", "h1", "h2", "h3", "h4", "tr", "dt", "dd", "table", "ul", "section")


class _Stripper(HTMLParser):
    """Collects a page's shown text."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._unshown = 0
        self._kept = 0
        """Number of open `pre` tags, whose line breaks count."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unshown += tag in _UNSHOWN
        self._kept += tag == "pre"
        if tag in _BLOCKS:
            self.parts.append("\n- " if tag == "li" else "\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._unshown -= tag in _UNSHOWN and self._unshown > 0
        self._kept -= tag == "pre" and self._kept > 0

    def handle_data(self, data: str) -> None:
        if not self._unshown:
            self.parts.append(data if self._kept else re.sub(r"\s+", " ", data))


def _without_tags(page: str) -> str:
    stripper = _Stripper()
    stripper.feed(page)
    text = "".join(stripper.parts).replace("¶", "")
    return "\n".join(line.strip(" ") if line[:2] != "  " else line for line in text.split("\n"))


def parts_within(items: Iterable[T], size_of: Callable[[T], int], room: int) -> Iterator[list[T]]:
    """Yield parts of consecutive items that fit in `room`; a larger item is one part."""
    part, used = list[T](), 0
    for item in items:
        size = size_of(item)
        if part and used + size > room:
            yield part
            part, used = [], 0
        part.append(item)
        used += size
    if part:
        yield part
