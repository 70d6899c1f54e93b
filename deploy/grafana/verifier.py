"""Define the dashboard "Verifier": the target's passes and cache."""

from deploy.grafana.dashboard import MODEL, VERIFIER, Dashboard, PanelRow
from deploy.grafana.panel import PER_SECOND, Panel, Query
from deploy.grafana.promql import INSTANCE, mean, per_second, quantile, selector, share

_PASSES = PanelRow(
    "Passes",
    (
        Panel(
            "Time of a pass by tokens",
            "Mean time of a pass, by its number of tokens.",
            "a rise of one line at the same load: the machine is slower. A pass over 64 tokens that takes as "
            "long as 64 passes over one: batching gains nothing.",
            (Query(mean("specinfer_verifier_pass_seconds", "tokens"), "{{tokens}} tokens"),),
            unit="s",
        ),
        Panel(
            "Slow passes by tokens",
            "Time of a pass, 95th percentile, by its number of tokens.",
            "far above the mean: another process uses the processor or the GPU.",
            (Query(quantile(0.95, "specinfer_verifier_pass_seconds", "tokens"), "{{tokens}} tokens"),),
            unit="s",
        ),
        Panel(
            "Passes by tokens",
            "Passes per second, by number of tokens.",
            "only passes over 257 and more: prompts leave no room for decoding, lower `--prefill-chunk`.",
            (Query(per_second("specinfer_verifier_pass_seconds_count", "tokens"), "{{tokens}} tokens"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Time of a step",
            "From a message of the gateway to the verdicts: pass, acceptance rule, bookkeeping.",
            "far above the time of a pass: the work around the pass is slow.",
            (
                Query(quantile(0.5, "specinfer_verifier_step_seconds"), "p50"),
                Query(quantile(0.95, "specinfer_verifier_step_seconds"), "p95"),
                Query(quantile(0.99, "specinfer_verifier_step_seconds"), "p99"),
            ),
            unit="s",
        ),
        Panel(
            "Busy",
            "Share of the time that each verifier spends on steps.",
            "above 90 % while requests wait: more verifiers are needed. Low while requests wait: it waits for "
            "the gateway or the speculators.",
            (Query(per_second("specinfer_verifier_step_seconds_sum", "instance"), "{{instance}}"),),
            unit="percentunit",
            most=1,
        ),
        Panel(
            "Batch size",
            "Requests in a step, mean.",
            "1 while many requests run: the gateway sends them one by one.",
            (Query(mean("specinfer_verifier_batch_size", "instance"), "{{instance}}"),),
        ),
    ),
)
_VERDICTS = PanelRow(
    "Verdicts",
    (
        Panel(
            "Entries by status",
            "Entries of steps by status.",
            "anything but `ok`: `resync` after a restart is normal, `invalid` and `failed` are faults.",
            (Query(per_second("specinfer_verifier_entries_total", "status"), "{{status}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Nodes verified and accepted",
            "Tree nodes, roots excluded.",
            "accepted far below verified: trees are too large.",
            (
                Query(per_second("specinfer_verifier_nodes_total"), "verified"),
                Query(per_second("specinfer_verifier_accepted_total"), "accepted"),
            ),
            unit=PER_SECOND,
        ),
        Panel(
            "Failed and fenced steps",
            "Steps that failed by a fault of the verifier, and steps of a gateway whose lease had ended.",
            "failed steps: see the verifier's log. Fenced steps: a gateway was suspended and replaced.",
            (
                Query(per_second("specinfer_verifier_failed_steps_total"), "failed"),
                Query(per_second("specinfer_verifier_fenced_steps_total"), "fenced"),
            ),
            unit="cps",
        ),
    ),
)
_CACHE = PanelRow(
    "KV cache",
    (
        Panel(
            "In use",
            "Share of the cache that holds requests.",
            "above 95 %: requests wait for room or are preempted and computed again.",
            (Query(selector("specinfer_kv_cache_usage_ratio"), "{{instance}}"),),
            unit="percentunit",
            most=1,
            alarm=0.95,
            width=6,
        ),
        Panel(
            "Size",
            "Tokens that fit into the cache, and tokens in use.",
            "the size differs between verifiers of one model: their settings or their memory differ.",
            (
                Query(selector("specinfer_kv_cache_tokens"), "size {{instance}}"),
                Query(
                    f"{selector('specinfer_kv_cache_tokens')} * {selector('specinfer_kv_cache_usage_ratio')}",
                    "in use {{instance}}",
                ),
            ),
            width=6,
        ),
        Panel(
            "Requests held",
            "Requests that have tokens in the cache.",
            "above the requests that run at the gateways, for long: requests are not released.",
            (Query(selector("specinfer_verifier_requests"), "{{instance}}"),),
            width=6,
        ),
        Panel(
            "Prompt tokens found in the cache",
            "Share of the prompt tokens that an earlier request has left in the cache, so that they are not "
            "computed again.",
            "near zero although prompts begin alike: they go to several verifiers, or the cache is small.",
            (
                Query(
                    share(
                        "specinfer_prefix_cache_hits_total",
                        "specinfer_prefix_cache_queries_total",
                        "instance",
                    ),
                    "{{instance}}",
                ),
            ),
            unit="percentunit",
            most=1,
            width=6,
        ),
    ),
)
_PROCESS = PanelRow(
    "Process",
    (
        Panel(
            "Processor time",
            "Cores that each verifier keeps busy.",
            "below its number of threads while it is busy: it waits for memory or shares its cores.",
            (Query(f"rate(process_cpu_seconds_total{{{INSTANCE}}}[$__rate_interval])", "{{instance}}"),),
        ),
        Panel(
            "Memory",
            "Resident memory of each verifier.",
            "a line that rises for hours.",
            (Query(selector("process_resident_memory_bytes"), "{{instance}}"),),
            unit="bytes",
        ),
        Panel(
            "Models",
            "Model and version of each verifier.",
            "different versions after an upgrade, or another model than the gateways expect.",
            (
                Query(
                    f"{selector('specinfer_model_info')} * on (instance) group_left (version) "
                    "max by (instance, version) (specinfer_build_info)",
                    "",
                ),
            ),
            kind="table",
        ),
    ),
)
VERIFIER_DASHBOARD = Dashboard(
    "specinfer-verifier",
    "SpecInfer: verifier",
    "Passes of the target model, verdicts, and the KV cache.",
    (MODEL, VERIFIER),
    (_PASSES, _VERDICTS, _CACHE, _PROCESS),
)
