"""The dashboard "Speculation": what is drafted, what of it is accepted, and what the planner makes of it."""

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
