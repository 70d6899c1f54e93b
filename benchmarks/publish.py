"""Where reports go."""

import json
from pathlib import Path
from typing import Any

from specinfer.cli.show import console

RESULTS = Path(__file__).resolve().parent / "results"


def publish(out: Path, report: dict[str, Any], markdown: str) -> None:
    """Writes `out`.json and `out`.md, and shows the latter."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(f"{out.name}.json").write_text(json.dumps(report, indent=2) + "\n")
    out.with_name(f"{out.name}.md").write_text(markdown)
    console.print(markdown, markup=False)
