"""Where reports go."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def write(out: Path, report: dict[str, Any], markdown: str) -> None:
    """Writes `out`.json and `out`.md."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(f"{out.name}.json").write_text(json.dumps(report, indent=2) + "\n")
    out.with_name(f"{out.name}.md").write_text(markdown)


def publish(out: Path, report: dict[str, Any], markdown: str) -> None:
    """Writes both and shows the latter."""
    from specinfer.cli.show import console  # a GPU's machine may lack what the command line needs

    write(out, report, markdown)
    console.print(markdown, markup=False)
