"""Define the overview's rows of saturation and errors."""

from deploy.grafana.dashboard import MODEL_FILTER, PanelRow
from deploy.grafana.panel import Panel, Query
from deploy.grafana.promql import mean, per_second, selector

_OURS = "and on (job, instance) specinfer_build_info"
"""Restricts process metrics to SpecInfer's services."""
SATURATION = PanelRow(
    "Saturation",
    (
        Panel(
            "Requests running and waiting",
            "Requests of each gateway.",
            "waiting rising for minutes while running stays level.",
            (
                Query(selector("specinfer_num_requests_running"), "running {{instance}}"),
                Query(selector("specinfer_num_requests_waiting"), "waiting {{instance}}"),
            ),
        ),
        Panel(
            "Batch size",
            "Mean requests in a step, by gateway.",
            "at `--max-batch` all the time: more verifiers are needed. Below it while requests wait: "
            "the cache of the verifier is full.",
            (Query(mean("specinfer_iteration_batch_size", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Seconds of an iteration by phase",
            "Mean of all gateways. `verify` is the target model, `draft` the wait for the speculators, "
            "`merge` and `commit` the gateway's own work.",
            "`draft` as long as `verify`: speculators are too slow. `merge` and `commit` above a tenth: "
            "the gateway lacks processor time.",
            (Query(mean("specinfer_iteration_phase_seconds", "phase"), "{{phase}}"),),
            unit="s",
            stacked=True,
        ),
        Panel(
            "KV cache in use",
            "Share of each verifier's cache that holds requests.",
            "above 95 %: requests wait for room or are preempted and computed again.",
            (Query(f"specinfer_kv_cache_usage_ratio {MODEL_FILTER}", "{{instance}}"),),
            unit="percentunit",
            most=1,
            alarm=0.95,
        ),
        Panel(
            "Processor time",
            "Processor seconds per second of each process, that is, the number of busy cores.",
            "a gateway near 1: its one core is busy, start another gateway.",
            (
                Query(
                    f"rate(process_cpu_seconds_total[$__rate_interval]) {_OURS}",
                    "{{job}} {{instance}}",
                ),
            ),
        ),
        Panel(
            "Memory",
            "Resident memory of each process.",
            "a line that rises for hours at the same load.",
            (Query(f"process_resident_memory_bytes {_OURS}", "{{job}} {{instance}}"),),
            unit="bytes",
        ),
    ),
)
ERRORS = PanelRow(
    "Errors",
    (
        Panel(
            "Ready",
            "1 while the gateway would serve a request, and while it reaches Redis, each verifier and each "
            "speculator service.",
            "0. Without a speculator service answers are slower; without any of the others there are none.",
            (
                Query(selector("specinfer_gateway_ready"), "gateway {{instance}}"),
                Query(selector("specinfer_redis_ready"), "Redis from {{instance}}"),
                Query(selector("specinfer_verifier_ready"), "verifier {{verifier}} from {{instance}}"),
                Query(selector("specinfer_speculator_ready"), "speculator {{service}} from {{instance}}"),
            ),
            most=1,
        ),
        Panel(
            "Faults",
            "Steps that failed, passes that the verifier did not answer, outages and data losses of Redis.",
            "anything above zero has a line in the gateway's log.",
            (
                Query(per_second("specinfer_failed_steps_total"), "failed steps"),
                Query(per_second("specinfer_verifier_failures_total"), "verifier did not answer"),
                Query(per_second("specinfer_redis_outages_total"), "Redis does not answer"),
                Query(per_second("specinfer_redis_losses_total"), "Redis lost its data"),
            ),
            unit="cps",
        ),
        Panel(
            "Requests moved",
            "Requests that were preempted for lack of cache, adopted from another gateway, or lost to another.",
            "constant preemptions: the cache is too small for the batch. Adopted or fenced requests "
            "without a restart: a gateway died or was suspended.",
            (
                Query(per_second("specinfer_preemptions_total"), "preempted"),
                Query(per_second("specinfer_adopted_requests_total"), "adopted"),
                Query(per_second("specinfer_fenced_requests_total"), "fenced"),
            ),
            unit="reqps",
        ),
        Panel(
            "Verifiers leased",
            "Verifiers of which each gateway has the lease.",
            "zero at all gateways: nothing is computed. In total fewer than exist: a verifier is idle.",
            (Query(selector("specinfer_verifiers_leased"), "{{instance}}"),),
            width=12,
        ),
        Panel(
            "Bytes on the wire",
            "Message bytes that gateways send and receive.",
            "to and from speculators far above the verifier's: their trees are larger than needed.",
            (
                Query(
                    per_second("specinfer_wire_bytes_total", "peer, direction"),
                    "{{peer}} {{direction}}",
                ),
            ),
            unit="Bps",
            width=12,
        ),
    ),
)
