"""Tables of settings and options in the pages: `python -m tests.docs.tables` writes them anew."""

import ast
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from all_in_one.settings import ServeSettings
from gateway.settings import GatewaySettings
from http_svc.settings import ApiSettings, HttpSettings
from specinfer.client.options import known_options
from specinfer.integrations.vllm.settings import PREFIX, VllmSettings
from specinfer.llm import SamplingParams
from specinfer.llm.build import LLMOptions
from specinfer.service.settings import ProcessSettings, ServiceSettings
from speculator_svc.settings import SpeculatorSettings
from tests.docs.blocks import ROOT
from verifier_svc.settings import VerifierSettings

Settings = type[ProcessSettings]


def table(head: str, rows: Iterable[tuple[str, object, str]]) -> str:
    """Return a table of names, defaults and meanings."""
    lines = [f"| {head} | default | meaning |", "|---|---|---|"]
    for name, default, meaning in rows:
        shown = "" if default in ("", None, ()) else f"`{default}`"
        lines.append(f"| `{name}` | {shown} | {' '.join(meaning.split()).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


OWN = ("listen", "metrics_port")
"""Settings of every service that differ in each."""


def settings(own: Settings, base: Settings | None = None) -> str:
    """Return the flags of a service that differ from those of a base; without one, those that all share."""
    known = base.model_fields if base else {}
    rows = []
    for name, field in own.model_fields.items():
        if base is None and name in OWN:
            continue
        if name in known and (field.default, field.description) == (
            known[name].default,
            known[name].description,
        ):
            continue
        if "CliSuppress" in str(field.metadata) + str(field.annotation) or field.description is None:
            continue
        yes_no = "[no-]" if field.annotation is bool else ""
        rows.append((f"--{yes_no}{name.replace('_', '-')}", shown(field.default), field.description))
    return table("setting", rows)


def shown(default: object) -> object:
    """Return a default as it is written on a command line."""
    return str(default).lower() if isinstance(default, bool) else default


def variables() -> str:
    """Return the variables of the proposer for vLLM."""
    rows = [
        (f"{PREFIX}{name.upper()}", "" if field.is_required() else field.default, field.description or "")
        for name, field in VllmSettings.model_fields.items()
    ]
    return table("variable", rows)


def dataclass_fields(kind: Any) -> str:
    """Return the fields of a dataclass with the texts below them."""
    body = ast.parse(inspect.getsource(kind).strip()).body[0].body  # type: ignore[attr-defined]
    meanings = {
        before.target.id: after.value.value
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }
    rows = [
        (field.name, () if field.default is MISSING else field.default, str(meanings.get(field.name, "")))
        for field in fields(kind)
    ]
    return table("name", rows)


def request_options() -> str:
    """Return the options of a request of the client."""
    return table("name", [(name, option.default, option.about) for name, option in known_options().items()])


TABLES: Mapping[tuple[str, str], Callable[[], str]] = {
    ("settings.md", "every service"): lambda: settings(ServiceSettings),
    ("settings.md", "gateway"): lambda: settings(GatewaySettings, ServiceSettings),
    ("settings.md", "verifier"): lambda: settings(VerifierSettings, ServiceSettings),
    ("settings.md", "speculator service"): lambda: settings(SpeculatorSettings, ServiceSettings),
    ("settings.md", "http"): lambda: settings(HttpSettings, ProcessSettings),
    ("settings.md", "serve"): lambda: settings(ServeSettings, ApiSettings),
    ("settings.md", "vllm"): variables,
    ("python.md", "llm"): lambda: dataclass_fields(LLMOptions),
    ("python.md", "sampling"): lambda: dataclass_fields(SamplingParams),
    ("python.md", "request"): request_options,
}
"""Tables by page and name; they stand between `<!-- NAME -->` and `<!-- end of NAME -->`."""
GENERATED = re.compile(r"(<!-- ([\w ]+) -->\n)(.*?)(<!-- end of \2 -->)", re.DOTALL)


def stored(page: str) -> dict[str, str]:
    """Return the tables that a page has, by name."""
    return {name: text for _, name, text, _ in GENERATED.findall((ROOT / "docs" / page).read_text())}


def main() -> None:
    """Write all tables anew."""
    for page in sorted({page for page, _ in TABLES}):
        path = ROOT / "docs" / page

        def write(found: re.Match[str], page: str = page) -> str:
            make = TABLES.get((page, found[2]))
            return found[1] + make() + found[4] if make else found[0]

        path.write_text(GENERATED.sub(write, path.read_text()))


if __name__ == "__main__":
    main()
