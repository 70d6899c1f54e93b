"""Markdown tables of the reports."""

from collections.abc import Sequence
from typing import Any


def origin(about: dict[str, Any]) -> str:
    """Return command, commit, time and machine of a report."""
    where = f"{about['cores']} cores of {about['cpu']}"
    return f"`{about['command']}` at {about['commit']}, {about['time']}, {where}"


def opening(title: str, report: dict[str, Any], rest: str) -> list[str]:
    """Return title and first paragraph of a report; `rest` ends the paragraph."""
    prompts = f"{report['prompts']} evaluation prompts, {report['new_tokens']} new tokens each"
    return [f"# {title}", "", f"{origin(report['about'])}; {prompts}{rest}", ""]


def head(columns: Sequence[str], corner: str = "") -> list[str]:
    """Return the first two lines of a table."""
    return [line(corner, columns), "|---|" + "---|" * len(columns)]


def line(label: str, cells: Sequence[str]) -> str:
    return f"| {label} | " + " | ".join(cells) + " |"


def row(label: str, values: Sequence[float]) -> str:
    """Return a line of a table with figures."""
    return line(label, [f"{value:.2f}" if value < 10 else f"{value:.1f}" for value in values])


def with_sections(title: str, report: str, sections: dict[str, str]) -> str:
    """Return a report with replaced or added sections, by title."""
    _, *parts = report.split("\n## ")
    texts = {part.split("\n", 1)[0]: f"## {part}" for part in parts} | sections
    return "\n\n".join(text.strip() for text in (title, *texts.values())) + "\n"
