"""The speculation dashboard's rows of drafts and planner."""

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
            "Answers of the speculator services, by what became of them.",
            "`late`: the service is slower than the verifier. `failed`: it does not answer. "
            "`malformed`: it sends trees that are none. `stale`: it is a step behind.",
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
            "Share of the drafts of a service that came late or not at all.",
            "above 10 %: the waiting was in vain.",
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
            "What a speculator service takes for the drafts of one speculator, 95 % of the times.",
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
            "What the services of the speculators say that they drafted.",
            "zero for one that is asked.",
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
            "Drafts that failed in their service, quarantines, speculators of which nothing is accepted any "
            "more, contexts that had to be sent again.",
            "collapsed at 1: it is broken, or drafts for another model. A quarantine: a speculator sent "
            "malformed trees again and again. Resyncs all the time: "
            "a service forgets requests, its memory may be too small.",
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
            "Requests whose text each speculator service has.",
            "far above the requests that run: the service does not forget finished ones.",
            (Query("specinfer_speculator_requests", "{{instance}}"),),
        ),
    ),
)
PLANNER = PanelRow(
    "Planner",
    (
        Panel(
            "Steps by reason",
            "Why the planner planned steps as it did.",
            "`first trees` or probes the most frequent for long: measurements do not settle.",
            (Query(per_second("specinfer_planner_steps_total", "reason"), "{{reason}}"),),
            unit="cps",
            stacked=True,
            width=6,
        ),
        Panel(
            "Steps that asked a speculator",
            "Steps per second in which each speculator was asked.",
            "zero for one that is cheap and accepted: look at its acceptance and its time.",
            (Query(per_second("specinfer_planner_asked_total", _BY, CHOSEN), "{{speculator}}"),),
            unit="cps",
            width=6,
        ),
        Panel(
            "Seconds: actual over expected",
            "What planned steps took, over what the planner expected.",
            "away from 1 for minutes, on either side: the plan rests on wrong costs.",
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
            "What planned steps brought, over what the planner expected.",
            "well below 1: scores of drafts are too high, so trees are larger than what pays.",
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
