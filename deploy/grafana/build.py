"""Write the dashboards' JSON: `python -m deploy.grafana.build`."""

import json
from pathlib import Path
from typing import Any

from deploy.grafana.http import HTTP
from deploy.grafana.overview import OVERVIEW
from deploy.grafana.speculation import SPECULATION
from deploy.grafana.verifier import VERIFIER

DIRECTORY = Path(__file__).parents[1] / "helm" / "specinfer" / "dashboards"
DASHBOARDS = (OVERVIEW, SPECULATION, VERIFIER, HTTP)


def path_of(dashboard: dict[str, Any]) -> Path:
    """Return the file from which Grafana reads a dashboard."""
    return DIRECTORY / f"{dashboard['uid']}.json"


def text_of(dashboard: dict[str, Any]) -> str:
    return json.dumps(dashboard, indent=1) + "\n"


def main() -> None:
    """Write every dashboard."""
    for dashboard in DASHBOARDS:
        path_of(dashboard).write_text(text_of(dashboard))


if __name__ == "__main__":
    main()
