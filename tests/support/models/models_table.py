"""Generate the table of docs/models.md: `python -m tests.support.models.models_table`."""

import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.loading import load_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.check import probe_loaded
from specinfer.model.probe.reference import quiet
from tests.support.models.families import FAMILIES, save_random

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
OPTIONS = RunnerOptions(dtype="float32", kv_tokens=512)
_BEGIN, _END = "<!-- families -->\n", "<!-- end of families -->"
_OURS = {"native": "compiled kernels", "torch": "our decoder in torch"}


def row(name: str, directory: Path) -> str:
    """Return a family's row: the probe's result for a small random checkpoint."""
    with quiet():
        save_random(name, directory)
        try:
            loaded = load_model(directory, OPTIONS)
            executor = probe_loaded(directory, loaded).executor
        except IncompatibleError as error:
            return f"| {name} | refused | {reason(str(error))} |"
    runs = _OURS.get(executor, "`transformers`")
    return f"| {name} | right | {runs} |"


def reason(message: str) -> str:
    """Return a refusal without its numbers, which differ between machines."""
    _, _, reason = message.rpartition("': ") if "model_type" in message else ("", "", message)
    silent = sorted(set(re.findall(r"\d+ \(([^)]*)\)", reason)))
    if silent:
        return f"memory beside the KV cache ({'; '.join(silent)})"
    return re.sub(r" \(.*", "", reason)


def table(names: Iterable[str]) -> str:
    """Return the table of these families."""
    lines = ["| model | | run by, or why not |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for place, name in enumerate(names):
            lines.append(row(name, Path(folder) / str(place)))
    return "\n".join(lines) + "\n"


def stored_rows() -> dict[str, str]:
    """Return the page's current rows by name."""
    inside = PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0]
    return {line.split("|")[1].strip(): line for line in inside.splitlines()[2:] if line}


def main() -> None:
    """Write the table into the page."""
    torch.set_num_threads(1)
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    PAGE.write_text(f"{before}{_BEGIN}{table(FAMILIES)}{_END}{rest.partition(_END)[2]}")


if __name__ == "__main__":
    sys.exit(main())
