"""Define the speculation dashboard's rows of drafts and planner."""

from deploy.grafana.dashboard import PanelRow
from deploy.grafana.panel import PER_SECOND, Panel, Query
from deploy.grafana.promql import SPECULATOR as CHOSEN
from deploy.grafana.promql import per_second, ratio, share

_BY = "speculator"
DRAFTS = PanelRow(
    "Drafts",
    (
        Panel(
            "Drafts by outcome",
            "Drafts of the speculator services by outcome.",
            "`late`: the service is slower than the verifier. `failed`: it does not answer. "
            "`malformed`: it sends invalid trees. `stale`: the request had ended.",
            (
                Query(
                    per_second("specinfer_drafts_total", "service, outcome"),
                    "{{service}} {{outcome}}",
                ),
            ),
            unit="cps",
        ),
        Panel(
            "Drafts not in time",
            "Share of a service's drafts that were late, failed, malformed or stale.",
            "above 10 %: steps wait for drafts that they cannot use.",
            (
                Query(
                    ratio(
                        per_second("specinfer_drafts_total", "service", 'outcome!="ok"'),
                        per_second("specinfer_drafts_total", "service"),
                    ),
                    "{{service}}",
                ),
            ),
            unit="percentunit",
            most=1,
        ),
        Panel(
            "Time of a draft",
            "Time of one speculator's drafts in a step, 95th percentile.",
            "more than a pass of the verifier.",
            (
                Query(
                    "histogram_quantile(0.95, sum by (le, speculator) (rate("
                    f"specinfer_speculator_draft_seconds_bucket{{{CHOSEN}}}[$__rate_interval])))",
                    "{{speculator}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Nodes drafted",
            "Nodes drafted per second, as the speculator services report.",
            "zero for a speculator that is asked to draft.",
            (
                Query(
                    "sum by (speculator) (rate(specinfer_speculator_nodes_total"
                    f"{{{CHOSEN}}}[$__rate_interval]))",
                    "{{speculator}}",
                ),
            ),
            unit=PER_SECOND,
        ),
        Panel(
            "Faults of speculators",
            "Drafts that failed in their service, quarantines, collapsed acceptance (1 if collapsed), and "
            "contexts that had to be sent again.",
            "collapsed at 1: it is broken, or drafts for another model. A quarantine: a speculator sent "
            "malformed trees repeatedly. Constant resyncs: "
            "a service drops requests, its cache may be too small.",
            (
                Query(
                    "sum by (speculator) (rate(specinfer_speculator_failures_total"
                    f"{{{CHOSEN}}}[$__rate_interval]))",
                    "failed {{speculator}}",
                ),
                Query(
                    per_second("specinfer_speculator_quarantines_total", _BY, CHOSEN),
                    "quarantined {{speculator}}",
                ),
                Query(
                    f"max by (speculator) (specinfer_speculator_collapsed{{{CHOSEN}}})",
                    "collapsed {{speculator}}",
                ),
                Query(per_second("specinfer_resyncs_total", "service"), "resync {{service}}"),
            ),
            unit="cps",
        ),
        Panel(
            "Contexts held",
            "Requests in each speculator service's cache.",
            "far above the requests that run: the service does not release finished ones.",
            (Query("specinfer_speculator_requests", "{{instance}}"),),
        ),
    ),
)
PLANNER = PanelRow(
    "Planner",
    (
        Panel(
            "Steps by reason",
            "Steps by the reason of the planner's choice.",
            "`first trees` or probes the most frequent for minutes: measurements are unstable.",
            (Query(per_second("specinfer_planner_steps_total", "reason"), "{{reason}}"),),
            unit="cps",
            stacked=True,
            width=6,
        ),
        Panel(
            "Steps that asked a speculator",
            "Steps per second in which each speculator was asked.",
            "zero for a fast speculator with high acceptance: compare its acceptance and time.",
            (Query(per_second("specinfer_planner_asked_total", _BY, CHOSEN), "{{speculator}}"),),
            unit="cps",
            width=6,
        ),
        Panel(
            "Seconds: actual over expected",
            "Seconds of planned steps, divided by the expected seconds.",
            "far from 1 for minutes: the planner uses wrong costs.",
            (
                Query(
                    share(
                        "specinfer_planner_actual_seconds_total", "specinfer_planner_expected_seconds_total"
                    ),
                    "actual / expected",
                ),
            ),
            width=6,
        ),
        Panel(
            "Tokens: actual over expected",
            "New tokens of planned steps, divided by the expected tokens.",
            "well below 1: scores of drafts are too high, so trees are too large.",
            (
                Query(
                    share("specinfer_planner_actual_tokens_total", "specinfer_planner_expected_tokens_total"),
                    "actual / expected",
                ),
            ),
            width=6,
        ),
    ),
)
