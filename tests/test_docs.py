"""What sources and pages say of the documentation exists: files, and anchors in them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHIVES = ROOT / "docs" / "findings"
"""Kept as they were written: they may name what is gone."""
BUILT = {"build", "dist", "__pycache__"}
TEXTS = {".py", ".md", ".h", ".cpp", ".proto", ".toml", ".yml", ".yaml"}
PLAIN_MENTION = re.compile(r"\bdocs/[\w/-]+\.md(?:#([\w-]+))?")
LINK = re.compile(r"\]\(([^)\s:#]*)(?:#([\w-]+))?\)")


def texts() -> Iterator[Path]:
    """Every text file of the project's own."""
    for name, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if (f == ".github" or f[0] != ".") and f not in BUILT]
        yield from (Path(name, file) for file in files if Path(file).suffix in TEXTS)


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its headings as GitHub names them, and ids set by hand."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


def mentions(path: Path) -> Iterator[tuple[Path, str]]:
    """(page, anchor) of everything that a file names; the anchor may be empty."""
    text = path.read_text()
    for found in PLAIN_MENTION.finditer(text):
        yield ROOT / found[0].partition("#")[0], found[1] or ""
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
    assert [problem for path in texts() if path.parent != ARCHIVES for problem in problems(path)] == []


def test_the_check_sees_files_and_anchors() -> None:
    """The negative control."""
    seen = {path.relative_to(ROOT).as_posix() for path in texts()}
    assert {
        "README.md",
        ".github/workflows/ci.yml",
        "proto/specinfer/v1/tree.proto",
        "docs/findings.md",
    } <= seen
    page = ROOT / "docs" / "findings.md"
    assert {"kernels-and-passes", "block-float"} <= anchors(page)
    assert "no-such-finding" not in anchors(page)
    assert list(mentions(ROOT / "specinfer" / "service" / "stream.py")) == [(page, "streams")]


def test_every_archive_is_linked_from_the_findings() -> None:
    linked = {page.resolve() for page, _ in mentions(ROOT / "docs" / "findings.md")}
    assert set(ARCHIVES.glob("*.md")) <= linked
