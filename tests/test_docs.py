"""Files and anchors that sources and pages refer to exist."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = {"build", "dist", "node_modules", "__pycache__"}
TEXTS = {".py", ".md", ".h", ".cpp", ".proto", ".toml", ".yml", ".yaml"}
PLAIN_MENTION = re.compile(r"\b(?:docs/[\w/-]+|benchmarks/tried)\.md(?:#([\w-]+))?")
CODE_NAME = re.compile(r"`(?:[a-z_]+\.)*([A-Z][a-z]+[A-Z]\w*)[.\w]*`|`([\w./-]+\.(?:py|h|cpp|proto|toml))`")
"""Pattern in pages of a class, or of a file with at least the end of its path."""
LINK = re.compile(r"\]\(([^)\s:#]*)(?:#([\w-]+))?\)")


def texts() -> Iterator[Path]:
    """Yield the project's text files."""
    for name, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if (f == ".github" or f[0] != ".") and f not in BUILT]
        yield from (Path(name, file) for file in files if Path(file).suffix in TEXTS)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: GitHub's ids of headings, and explicit ids."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


def mentions(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield (page, anchor) of every link in a file; the anchor may be empty."""
    text = path.read_text()
    for match in PLAIN_MENTION.finditer(text):
        yield ROOT / match[0].partition("#")[0], match[1] or ""
    if path.suffix == ".md":
        for target, anchor in LINK.findall(text):
            yield (path.parent / target if target else path), anchor


def problems(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} names {page}#{anchor}"
        for page, anchor in mentions(path)
        if not page.exists() or (anchor and anchor not in anchors(page))
    ]


def test_what_files_name_exists() -> None:
    assert [problem for path in texts() for problem in problems(path)] == []


def unknown_names(page: str) -> list[str]:
    """Return the classes and files that a page names but the sources lack."""
    sources = [path for path in texts() if path.suffix != ".md"]
    paths = [path.relative_to(ROOT).as_posix() for path in sources]
    text = "\n".join(path.read_text() for path in sources)
    return [
        name or file
        for name, file in CODE_NAME.findall(page)
        if not (re.search(rf"\b{name}\b", text) if name else any(p.endswith(file) for p in paths))
    ]


def test_code_that_pages_name_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    examples = {"my_drafts.py"}
    assert {page.name: set(unknown_names(page.read_text())) - examples for page in pages} == {
        page.name: set() for page in pages
    }
    gone = "Node" + "Worth"
    assert unknown_names(f"`{gone}` in `gateway/{gone}.py`, `draws.py`, `TokenTree.order`") == [
        gone,
        f"gateway/{gone}.py",
    ]


def test_the_check_sees_files_and_anchors() -> None:
    """The negative control."""
    seen = {path.relative_to(ROOT).as_posix() for path in texts()}
    assert {
        "README.md",
        ".github/workflows/ci.yml",
        "proto/specinfer/v1/tree.proto",
        "docs/performance.md",
    } <= seen
    page = ROOT / "benchmarks" / "tried.md"
    assert {"taken-out", "block-float"} <= anchors(page)
    assert "no-such-finding" not in anchors(page)
    assert list(mentions(ROOT / "specinfer" / "service" / "stream.py")) == [(page, "streams")]


def test_lines_of_pages_are_short() -> None:
    """Prose has at most 120 columns; table rows and commands may be longer."""
    long = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        prose = re.sub(
            r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), page.read_text(), flags=re.M | re.S
        )
        for number, line in enumerate(prose.split("\n"), 1):
            if len(line) > 120 and not line.startswith(("|", "    ")):
                long.append(f"{page.name}:{number}")
    assert not long
