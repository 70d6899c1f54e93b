"""Write the dashboards' JSON: `python -m deploy.grafana.build`."""

import json
from pathlib import Path

from deploy.grafana.dashboard import Dashboard
from deploy.grafana.http import HTTP_DASHBOARD
from deploy.grafana.overview import OVERVIEW
from deploy.grafana.speculation import SPECULATION
from deploy.grafana.verifier import VERIFIER_DASHBOARD

DIRECTORY = Path(__file__).parents[1] / "helm" / "specinfer" / "dashboards"
DASHBOARDS = (OVERVIEW, SPECULATION, VERIFIER_DASHBOARD, HTTP_DASHBOARD)


def path_of(dashboard: Dashboard) -> Path:
    """Return the file from which Grafana reads a dashboard."""
    return DIRECTORY / f"{dashboard.uid}.json"


def text_of(dashboard: Dashboard) -> str:
    """Return a dashboard's JSON text."""
    return json.dumps(dashboard.to_json(), indent=1) + "\n"


def main() -> None:
    """Write every dashboard."""
    for dashboard in DASHBOARDS:
        path_of(dashboard).write_text(text_of(dashboard))


if __name__ == "__main__":
    main()
