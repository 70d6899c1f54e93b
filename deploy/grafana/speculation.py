"""Define the dashboard "Speculation": drafts, acceptance and planning."""

from deploy.grafana.acceptance import ACCEPTANCE, TREES
from deploy.grafana.dashboard import GATEWAY, MODEL, SPECULATOR, Dashboard
from deploy.grafana.drafts import DRAFTS, PLANNER
from deploy.grafana.learning import LEARNING

SPECULATION = Dashboard(
    "specinfer-speculation",
    "SpecInfer: speculation",
    "Drafts, trees, acceptance and the planner.",
    (MODEL, GATEWAY, SPECULATOR),
    (ACCEPTANCE, TREES, DRAFTS, PLANNER, LEARNING),
)
