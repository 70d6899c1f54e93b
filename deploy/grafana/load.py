"""Define the overview's rows of traffic and latency."""

from deploy.grafana.dashboard import PanelRow
from deploy.grafana.panel import PER_SECOND, Panel, Query
from deploy.grafana.promql import per_second, quantile, selector


def _quantiles(histogram: str, *shares: float) -> tuple[Query, ...]:
    return tuple(Query(quantile(share, histogram), f"p{share * 100:.0f}") for share in shares)


GLANCE = PanelRow(
    "At a glance",
    (
        Panel(
            "Tokens per second",
            "Tokens generated, all requests together.",
            "far below the usual value while requests are waiting: something is slow, look at the verifier.",
            (Query(per_second("specinfer_generation_tokens_total"), "tokens/s"),),
            unit=PER_SECOND,
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Requests running",
            "Requests in the batches of all gateways.",
            "zero while requests are waiting: no verifier is driven.",
            (Query(f"sum({selector('specinfer_num_requests_running')})", "running"),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Requests waiting",
            "Requests that wait for a place in a batch.",
            "more than zero for minutes: the verifiers are overloaded. At `--max-waiting`, more are refused.",
            (Query(f"sum({selector('specinfer_num_requests_waiting')})", "waiting"),),
            kind="stat",
            width=4,
            height=4,
            alarm=16,
        ),
        Panel(
            "First token, p95",
            "Time to first token, 95th percentile, including the time in the queue.",
            "seconds: requests wait, or prompts are long and few of their blocks are cached.",
            (Query(quantile(0.95, "specinfer_time_to_first_token_seconds"), "p95"),),
            unit="s",
            kind="stat",
            width=4,
            height=4,
            alarm=5,
        ),
        Panel(
            "Errors",
            "Share of the requests of the last five minutes that failed by a fault of the system.",
            "anything above 1 %: see the row Errors.",
            (Query(f"max({selector('instance:specinfer_errors:ratio_rate5m')})", "errors"),),
            unit="percentunit",
            kind="stat",
            width=4,
            height=4,
            alarm=0.01,
        ),
        Panel(
            "Gateways alive",
            "Live gateways that share this Redis: the minimum that any of them reports.",
            "fewer than were started. With only one, no gateway takes over when it dies.",
            (Query(f"min({selector('specinfer_gateways_alive')})", "alive"),),
            kind="stat",
            width=4,
            height=4,
            alarm=1,
            alarm_below=True,
        ),
    ),
)
TRAFFIC = PanelRow(
    "Traffic",
    (
        Panel(
            "Requests finished",
            "Requests that ended, by reason.",
            "`error` above zero. Many `cancelled`: clients leave, compare the latency. "
            "Many `deadline`: answers take longer than clients allow.",
            (Query(per_second("specinfer_request_success_total", "finished_reason"), "{{finished_reason}}"),),
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Tokens read and generated",
            "Prompt tokens of requests with a first token, and generated tokens.",
            "generated tokens falling while as many requests run as before.",
            (
                Query(per_second("specinfer_prompt_tokens_total"), "prompt"),
                Query(per_second("specinfer_generation_tokens_total"), "generated"),
            ),
            unit=PER_SECOND,
        ),
        Panel(
            "Requests refused",
            "Requests that were not accepted, by status code.",
            "`RESOURCE_EXHAUSTED`: the queue or a quota is full. `UNAVAILABLE`: no verifier or no Redis. "
            "`INTERNAL`: a fault of the gateway, see its log. Other codes are mistakes of clients.",
            (Query(per_second("specinfer_requests_refused_total", "code"), "{{code}}"),),
            unit="reqps",
            stacked=True,
        ),
    ),
)
LATENCY = PanelRow(
    "Latency",
    (
        Panel(
            "Time to first token",
            "From a request's arrival to its first token.",
            "p95 in seconds. If the queue time rises with it, requests wait; else prompts take long.",
            _quantiles("specinfer_time_to_first_token_seconds", 0.5, 0.95, 0.99),
            unit="s",
            width=6,
        ),
        Panel(
            "Time between tokens",
            "Time from one token of a request to its next. Tokens that one step accepts arrive together.",
            "p50 above what a pass of the verifier takes: steps wait for the gateway or the speculators.",
            _quantiles("specinfer_inter_token_latency_seconds", 0.5, 0.95, 0.99),
            unit="s",
            width=6,
        ),
        Panel(
            "Whole request",
            "From a request's arrival to its end.",
            "a rise that longer answers do not explain.",
            _quantiles("specinfer_e2e_request_latency_seconds", 0.5, 0.95, 0.99),
            unit="s",
            width=6,
        ),
        Panel(
            "Time in the queue",
            "From a request's arrival to its first place in a batch.",
            "more than the time of a few steps: the batches are full.",
            _quantiles("specinfer_request_queue_time_seconds", 0.5, 0.95, 0.99),
            unit="s",
            width=6,
        ),
    ),
)
