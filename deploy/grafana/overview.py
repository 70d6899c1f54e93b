"""Define the dashboard "Overview": traffic, latency, saturation and errors of gateways."""

from deploy.grafana.board import GATEWAY, MODEL, PER_SECOND, board, line, panel
from deploy.grafana.promql import mean, per_second, quantiles, selector

_TRAFFIC = [
    panel(
        "Tokens read and generated",
        "Prompt tokens of requests with a first token, and generated tokens.",
        "generated tokens falling while as many requests run as before: look at the verifier.",
        line(per_second("specinfer_prompt_tokens_total"), "prompt"),
        line(per_second("specinfer_generation_tokens_total"), "generated"),
        unit=PER_SECOND,
    ),
    panel(
        "Requests running and waiting",
        "Requests of each gateway in a batch, and those that wait for a place.",
        "waiting rising for minutes while running stays level: the verifiers are overloaded. At `--max-waiting`, "
        "more are refused.",
        line(selector("specinfer_num_requests_running"), "running {{instance}}"),
        line(selector("specinfer_num_requests_waiting"), "waiting {{instance}}"),
    ),
    panel(
        "Requests finished",
        "Requests that ended, by reason.",
        "`error` above zero. Many `cancelled`: clients leave, compare the latency. "
        "Many `deadline`: answers take longer than clients allow.",
        line(per_second("specinfer_request_success_total", "finished_reason"), "{{finished_reason}}"),
        unit="reqps",
        stacked=True,
    ),
]
_LATENCY = [
    panel(
        "Time to first token",
        "From a request's arrival to its first token.",
        "p95 in seconds. If the queue time rises with it, requests wait; else prompts take long.",
        *quantiles("specinfer_time_to_first_token_seconds"),
        unit="s",
    ),
    panel(
        "Time between tokens",
        "Time from one token of a request to its next. Tokens that one step accepts arrive together.",
        "p50 above what a pass of the verifier takes: steps wait for the gateway or the speculators.",
        *quantiles("specinfer_inter_token_latency_seconds"),
        unit="s",
    ),
    panel(
        "Time in the queue",
        "From a request's arrival to its first place in a batch.",
        "more than the time of a few steps: the batches are full.",
        *quantiles("specinfer_request_queue_time_seconds"),
        unit="s",
    ),
]
_SATURATION = [
    panel(
        "Seconds of an iteration by phase",
        "Mean of all gateways. `verify` is the target model, `draft` the wait for the speculators, "
        "`merge` and `commit` the gateway's own work.",
        "`draft` as long as `verify`: speculators are too slow. `merge` and `commit` above a tenth: "
        "the gateway lacks processor time.",
        line(mean("specinfer_iteration_phase_seconds", "phase"), "{{phase}}"),
        unit="s",
        stacked=True,
    ),
    panel(
        "Processor time",
        "Processor seconds per second of each process, that is, the number of busy cores.",
        "a gateway near 1: its one core is busy, start another gateway.",
        line(
            "rate(process_cpu_seconds_total[$__rate_interval]) and on (job, instance) specinfer_build_info",
            "{{job}} {{instance}}",
        ),
    ),
    panel(
        "Memory",
        "Resident memory of each process.",
        "a line that rises for hours at the same load.",
        line(
            "process_resident_memory_bytes and on (job, instance) specinfer_build_info",
            "{{job}} {{instance}}",
        ),
        unit="bytes",
    ),
]
_ERRORS = [
    panel(
        "Ready",
        "1 while the gateway would serve a request, and while it reaches Redis, each verifier and each "
        "speculator service.",
        "0. Without a speculator service answers are slower; without any of the others there are none.",
        line(selector("specinfer_gateway_ready"), "gateway {{instance}}"),
        line(selector("specinfer_redis_ready"), "Redis from {{instance}}"),
        line(selector("specinfer_verifier_ready"), "verifier {{verifier}} from {{instance}}"),
        line(selector("specinfer_speculator_ready"), "speculator {{service}} from {{instance}}"),
        most=1,
    ),
    panel(
        "Gateways and leases",
        "Live gateways that share this Redis, as each reports, and verifiers of which each has the lease.",
        "with only one gateway alive, none takes over when it dies. Leases in total fewer than verifiers: one "
        "is idle; zero: nothing is computed.",
        line(selector("specinfer_gateways_alive"), "alive {{instance}}"),
        line(selector("specinfer_verifiers_leased"), "leased {{instance}}"),
    ),
    panel(
        "Requests refused",
        "Requests that were not accepted, by status code.",
        "`RESOURCE_EXHAUSTED`: the queue or a quota is full. `UNAVAILABLE`: no verifier or no Redis. "
        "`INTERNAL`: a fault of the gateway, see its log. Other codes are mistakes of clients.",
        line(per_second("specinfer_requests_refused_total", "code"), "{{code}}"),
        unit="reqps",
        stacked=True,
    ),
    panel(
        "Faults",
        "Steps that failed, passes that the verifier did not answer, outages and data losses of Redis.",
        "anything above zero has a line in the gateway's log.",
        line(per_second("specinfer_failed_steps_total"), "failed steps"),
        line(per_second("specinfer_verifier_failures_total"), "verifier did not answer"),
        line(per_second("specinfer_redis_outages_total"), "Redis does not answer"),
        line(per_second("specinfer_redis_losses_total"), "Redis lost its data"),
        unit="cps",
    ),
    panel(
        "Requests moved",
        "Requests that were preempted for lack of cache, adopted from another gateway, or lost to another.",
        "constant preemptions: the cache is too small for the batch. Adopted or fenced requests "
        "without a restart: a gateway died or was suspended.",
        line(per_second("specinfer_preemptions_total"), "preempted"),
        line(per_second("specinfer_adopted_requests_total"), "adopted"),
        line(per_second("specinfer_fenced_requests_total"), "fenced"),
        unit="reqps",
    ),
]
OVERVIEW = board(
    "specinfer-overview",
    "SpecInfer: overview",
    "Traffic, latency, saturation and errors.",
    [MODEL, GATEWAY],
    {"Traffic": _TRAFFIC, "Latency": _LATENCY, "Saturation": _SATURATION, "Errors": _ERRORS},
)
