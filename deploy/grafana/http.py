"""Define the dashboard "HTTP": calls of OpenAI's API."""

from deploy.grafana.dashboard import HTTP, Dashboard, PanelRow
from deploy.grafana.panel import Panel, Query
from deploy.grafana.promql import per_second, quantile, selector

_CALLS = PanelRow(
    "Calls",
    (
        Panel(
            "Calls by endpoint",
            "Calls that ended, per second.",
            "none while clients complain: they do not reach the service.",
            (Query(per_second("specinfer_http_calls_total", "endpoint"), "{{endpoint}}"),),
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Calls by status",
            "Calls that ended, per second, by HTTP status.",
            "429: a queue or a quota is full. 503: no gateway can serve, or too many calls. 500, 502: faults.",
            (Query(per_second("specinfer_http_calls_total", "status"), "{{status}}"),),
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "HTTP errors",
            "Share of the calls of the last five minutes that ended with status 500 to 599.",
            "anything above 1 %: look at the gateways first.",
            (Query(selector("instance:specinfer_http_errors:ratio_rate5m"), "{{instance}}"),),
            unit="percentunit",
        ),
        Panel(
            "Duration of calls",
            "From a call's headers to the end of its answer, streams included.",
            "a rise at the same load and the same lengths of answers: the gateways are slower.",
            (
                Query(quantile(0.5, "specinfer_http_call_seconds"), "p50"),
                Query(quantile(0.95, "specinfer_http_call_seconds"), "p95"),
                Query(quantile(0.99, "specinfer_http_call_seconds"), "p99"),
            ),
            unit="s",
        ),
        Panel(
            "Calls running",
            "Calls being answered at this moment.",
            "near `--max-calls`: more are refused; start more services.",
            (Query(f"sum by (instance) ({selector('specinfer_http_calls_running')})", "{{instance}}"),),
        ),
        Panel(
            "Clients that leave",
            "Per second: calls whose client left before the end, and streams continued at another gateway.",
            "many clients leave: their timeouts are too short, or a proxy ends the calls.",
            (
                Query(per_second("specinfer_http_hung_up_total"), "hung up"),
                Query(per_second("specinfer_http_resumed_total"), "continued"),
            ),
            unit="reqps",
        ),
    ),
)
HTTP_DASHBOARD = Dashboard(
    "specinfer-http",
    "SpecInfer: HTTP",
    "Calls of OpenAI's API: number, status and duration.",
    (HTTP,),
    (_CALLS,),
)
