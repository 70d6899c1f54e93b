"""Define the dashboard "Verifier": the target's passes and cache."""

from deploy.grafana.board import MODEL, MODEL_FILTER, board, line, panel, variable
from deploy.grafana.promql import mean, per_second, selector, share

_PASSES = [
    panel(
        "Time of a pass by tokens",
        "Mean time of a pass, by its number of tokens.",
        "a rise of one line at the same load: the machine is slower. A pass over 64 tokens that takes as "
        "long as 64 passes over one: batching gains nothing.",
        line(mean("specinfer_verifier_pass_seconds", "tokens"), "{{tokens}} tokens"),
        unit="s",
    ),
    panel(
        "Busy",
        "Share of the time that each verifier spends on steps.",
        "above 90 % while requests wait: more verifiers are needed. Low while requests wait: it waits for "
        "the gateway or the speculators.",
        line(per_second("specinfer_verifier_step_seconds_sum", "instance"), "{{instance}}"),
        unit="percentunit",
        most=1,
    ),
    panel(
        "Batch size",
        "Requests in a step, mean.",
        "1 while many requests run: the gateway sends them one by one. At `--max-batch` all the time: more "
        "verifiers are needed.",
        line(mean("specinfer_verifier_batch_size", "instance"), "{{instance}}"),
    ),
]
_CACHE = [
    panel(
        "In use",
        "Share of the cache that holds requests.",
        "above 95 %: requests wait for room or are preempted and computed again.",
        line(selector("specinfer_kv_cache_usage_ratio"), "{{instance}}"),
        unit="percentunit",
        most=1,
        alarm=0.95,
    ),
    panel(
        "Prompt tokens found in the cache",
        "Share of the prompt tokens that an earlier request has left in the cache, so that they are not "
        "computed again.",
        "near zero although prompts begin alike: they go to several verifiers, or the cache is small.",
        line(
            share("specinfer_prefix_cache_hits_total", "specinfer_prefix_cache_queries_total", "instance"),
            "{{instance}}",
        ),
        unit="percentunit",
        most=1,
    ),
    panel(
        "Entries by status",
        "Entries of steps by status; steps that failed by a fault of the verifier, and steps of a gateway whose "
        "lease had ended.",
        "anything but `ok`: `resync` after a restart is normal, `invalid` and `failed` are faults. Fenced steps: "
        "a gateway was suspended and replaced.",
        line(per_second("specinfer_verifier_entries_total", "status"), "{{status}}"),
        line(per_second("specinfer_verifier_failed_steps_total"), "failed steps"),
        line(per_second("specinfer_verifier_fenced_steps_total"), "fenced steps"),
        unit="cps",
        stacked=True,
    ),
]
VERIFIER = board(
    "specinfer-verifier",
    "SpecInfer: verifier",
    "Passes of the target model, verdicts, and the KV cache.",
    [MODEL, variable("instance", "Verifier", f"specinfer_kv_cache_usage_ratio {MODEL_FILTER}")],
    {"Passes": _PASSES, "Cache and verdicts": _CACHE},
)
