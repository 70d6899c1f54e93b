"""Find docstrings and comments that break the house's rules of plain English."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

MAX_WORDS = 16
MAX_CHARACTERS = 90
MAX_SUBORDINATE_WORDS = 1
SUBORDINATE = re.compile(r"\b(that|which|who|whose|what|where|as)\b", re.IGNORECASE)
OPENING = re.compile(r"(What|Whether|Which|Those|That|Whose|Of|How|See)\b")
CODE = re.compile(r"``.+?``|`[^`]*`", re.DOTALL)
CPP_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

IDIOMS = [
    (r"\bbehind\b", "after"),
    (r"\bbeside\b", "next to, in addition to"),
    (r"\b(goes|go|went|going|gone) on\b", "continue"),
    (r"\b(is|are|was|were|be|been) taken for\b", "counts as"),
    (r"\b(as|so) far as\b", "if"),
    (r"\bsays\b", "states, returns"),
    (r"\b(tells?|told|telling)\b", "report"),
    (r"\b(hopes?|wish|wishes)\b", "expect, want"),
    (r"\banew\b", "again"),
    (r"\bwhoever\b", "any client"),
    (r"\b(puts?|putting) (\w+ )?off\b", "defer"),
    (r"\bbr(ought|ings?|inging)\b", "produce, add"),
    (r"\b(bears?|bearing|bore) with\b", "wait for"),
    (r"\b(is|are|was|were|be|been|stays?) away\b", "unavailable"),
    (r"(?:^|[.:;] )(most|least) (?!of\b)", "maximum, minimum"),
    (r"\bheld\b(?![- ]out)", "cached, stored"),
    (r"\bhold(s|ing)?\b(?!,? (a|the|its|their|this|that|one) (lock|lease))", "cache, store, contain"),
]
"""Pattern of each idiom, and the plain words to use instead."""
PATTERNS = [(re.compile(pattern, re.IGNORECASE), plain) for pattern, plain in IDIOMS]


def python_faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and fault of each docstring and comment of a Python file."""
    for line, text in docstrings(source):
        yield from ((line, fault) for fault in summary_faults(text))
        yield from ((line, fault) for fault in idiom_faults(text))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], fault) for fault in idiom_faults(token.string.lstrip("# ")))


def cpp_faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and fault of each comment of a C++ file."""
    for match in CPP_COMMENT.finditer(source):
        if not match[0].startswith('"'):
            line = source.count("\n", 0, match.start()) + 1
            yield from ((line, fault) for fault in idiom_faults(match[0].lstrip("/* ")))


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip()


def summary_faults(text: str) -> Iterator[str]:
    """Yield the faults of a docstring's first paragraph."""
    if opening := OPENING.match(text):
        yield f"begins with {opening[0]}"
    summary = CODE.sub("code", " ".join(text.split("\n\n")[0].split()))
    words = len(re.findall(r"[\w'’./-]*\w[\w'’./-]*", summary))
    if words > MAX_WORDS:
        yield f"{words} words in the first line"
    if (length := len(" ".join(text.split("\n\n")[0].split()))) > MAX_CHARACTERS:
        yield f"{length} characters in the first line"
    subordinate = SUBORDINATE.findall(summary)
    if len(subordinate) > MAX_SUBORDINATE_WORDS:
        yield f"several subordinate words in the first line: {', '.join(subordinate)}"


def idiom_faults(text: str) -> Iterator[str]:
    """Yield an idiom of a text, and the plain words for it."""
    prose = " ".join(CODE.sub("code", text).split())
    for pattern, plain in PATTERNS:
        if match := pattern.search(prose):
            yield f'"{match[0].strip()}" (use: {plain})'
