"""Generate the tables of settings and options in the pages: `python -m tests.docs.tables`."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from specinfer.client.options import known_options
from specinfer.integrations.vllm.settings import PREFIX, VllmSettings
from specinfer.llm import SamplingParams
from specinfer.llm.options import LLMOptions
from specinfer.options.model_options import described
from tests.docs.blocks import ROOT
from tests.docs.metrics import metrics
from tests.docs.neutral import neutral_fields
from tests.docs.options import options


def table(head: str, rows: Iterable[tuple[str, object, str]]) -> str:
    """Return a table of names, defaults and meanings."""
    lines = [f"| {head} | default | meaning |", "|---|---|---|"]
    for name, default, meaning in rows:
        shown = "" if default in ("", None, ()) else f"`{default}`"
        lines.append(f"| `{name}` | {shown} | {' '.join(meaning.split()).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def variables() -> str:
    """Return the variables of the proposer for vLLM."""
    rows = [
        (f"{PREFIX}{name.upper()}", "" if field.is_required() else field.default, field.description or "")
        for name, field in VllmSettings.model_fields.items()
    ]
    return table("variable", rows)


def dataclass_fields(kind: Any) -> str:
    """Return the fields of a dataclass with the help in their annotations."""
    helps = described(kind)
    rows = [(f.name, () if f.default is MISSING else f.default, helps[f.name].help) for f in fields(kind)]
    return table("name", rows)


def request_options() -> str:
    return table("name", [(name, option.default, option.about) for name, option in known_options().items()])


TABLES: Mapping[tuple[str, str], Callable[[], str]] = {
    ("settings.md", "options"): options,
    ("settings.md", "vllm"): variables,
    ("http.md", "fields"): neutral_fields,
    ("settings.md", "metrics"): metrics,
    ("settings.md", "llm"): lambda: dataclass_fields(LLMOptions),
    ("settings.md", "sampling"): lambda: dataclass_fields(SamplingParams),
    ("settings.md", "request"): request_options,
}
"""Functions that build tables, by (page, name). Pages have them between `<!-- NAME -->` and `<!-- end of NAME -->`."""
GENERATED = re.compile(r"(<!-- ([\w ]+) -->\n)(.*?)(<!-- end of \2 -->)", re.DOTALL)


def stored(page: str) -> dict[str, str]:
    """Return the current tables of a page by name."""
    return {name: text for _, name, text, _ in GENERATED.findall((ROOT / "docs" / page).read_text())}


def main() -> None:
    """Write all tables into the pages."""
    for page in sorted({page for page, _ in TABLES}):
        path = ROOT / "docs" / page

        def write(match: re.Match[str], page: str = page) -> str:
            make = TABLES.get((page, match[2]))
            return match[1] + make() + match[4] if make else match[0]

        path.write_text(GENERATED.sub(write, path.read_text()))


if __name__ == "__main__":
    main()
