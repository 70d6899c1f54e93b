"""Define the dashboard "HTTP": calls of OpenAI's API."""

from deploy.grafana.board import board, line, panel, variable
from deploy.grafana.promql import per_second, quantiles, selector

HTTP = board(
    "specinfer-http",
    "SpecInfer: HTTP",
    "Calls of OpenAI's API: number, status and duration.",
    [variable("instance", "HTTP service", "specinfer_http_calls_running")],
    {
        "Calls": [
            panel(
                "Calls by status",
                "Calls that ended, per second, by endpoint and HTTP status.",
                "429: a queue or a quota is full. 503: no gateway can serve, or too many calls. 500, 502: faults. "
                "None while clients complain: they do not reach the service.",
                line(per_second("specinfer_http_calls_total", "endpoint, status"), "{{status}} {{endpoint}}"),
                unit="reqps",
                stacked=True,
            ),
            panel(
                "Duration of calls",
                "From a call's headers to the end of its answer, streams included.",
                "a rise at the same load and the same lengths of answers: the gateways are slower.",
                *quantiles("specinfer_http_call_seconds"),
                unit="s",
            ),
            panel(
                "Calls running",
                "Calls being answered at this moment.",
                "near `--max-calls`: more are refused; start more services.",
                line(f"sum by (instance) ({selector('specinfer_http_calls_running')})", "{{instance}}"),
            ),
            panel(
                "Clients that leave",
                "Per second: calls whose client left before the end, and streams continued at another gateway.",
                "many clients leave: their timeouts are too short, or a proxy ends the calls.",
                line(per_second("specinfer_http_hung_up_total"), "hung up"),
                line(per_second("specinfer_http_resumed_total"), "continued"),
                unit="reqps",
            ),
        ]
    },
)
