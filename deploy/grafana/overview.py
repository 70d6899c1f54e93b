"""Define the dashboard "Overview": traffic, latency, saturation and errors of gateways."""

from deploy.grafana.condition import ERRORS, SATURATION
from deploy.grafana.dashboard import GATEWAY, MODEL, Dashboard
from deploy.grafana.load import GLANCE, LATENCY, TRAFFIC

OVERVIEW = Dashboard(
    "specinfer-overview",
    "SpecInfer: overview",
    "Traffic, latency, saturation and errors.",
    (MODEL, GATEWAY),
    (GLANCE, TRAFFIC, LATENCY, SATURATION, ERRORS),
)
