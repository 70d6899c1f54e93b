"""Define the dashboard "Speculation": drafts, acceptance and planning."""

from deploy.grafana.board import GATEWAY, MODEL, PER_SECOND, board, line, panel, variable
from deploy.grafana.promql import SPECULATOR, mean, per_second, share

_DECODE = "specinfer_spec_decode_num"
_LEARNING = "specinfer_speculator_learning"
_BY = "speculator"


def _of_service(metric: str, by: str = _BY) -> str:
    """Return the increase per second of a counter of speculator services."""
    return f"sum by ({by}) (rate({metric}{{{SPECULATOR}}}[$__rate_interval]))"


_ACCEPTANCE = [
    panel(
        "Tokens per step",
        "Mean new tokens of a request per pass: accepted tokens and the bonus token.",
        "near 1: speculation gains nothing, decoding is plain.",
        line(f"1 + {mean('specinfer_accepted_depth', 'instance')}", "{{instance}}"),
    ),
    panel(
        "Acceptance by speculator",
        "Share of the drafted tokens that the verifier accepted.",
        "a fall to less than half of the usual value: the prompts are of another kind, or a drafter has "
        "other weights than the verifier expects.",
        line(
            share(f"{_DECODE}_accepted_tokens_total", f"{_DECODE}_draft_tokens_total", _BY, SPECULATOR),
            "{{speculator}}",
        ),
        unit="percentunit",
        most=1,
    ),
    panel(
        "Accepted at each depth",
        "Accepted tokens of a step at each depth of the merged tree, over steps with a draft.",
        "the first depth below 30 %: first tokens are mostly wrong, so deeper nodes are useless.",
        line(
            per_second(f"{_DECODE}_accepted_tokens_per_pos_total", "position")
            + f" / on () group_left () ({per_second('specinfer_accepted_depth_count')} > 0)",
            "depth {{position}}",
        ),
        unit="percentunit",
    ),
]
_DRAFTS = [
    panel(
        "Drafts not in time",
        "Share of a service's drafts that were late, failed, malformed or stale.",
        "above 10 %: steps wait for drafts that they cannot use. `late`: the service is slower than the verifier. "
        "`failed`: it does not answer. `malformed`: it sends invalid trees. `stale`: the request had ended.",
        line(
            per_second("specinfer_drafts_total", "service, outcome", 'outcome!="ok"')
            + f" / on (service) group_left () ({per_second('specinfer_drafts_total', 'service')} > 0)",
            "{{service}} {{outcome}}",
        ),
        unit="percentunit",
        stacked=True,
        most=1,
    ),
    panel(
        "Time of a draft",
        "Time of one speculator's drafts in a step, 95th percentile.",
        "more than a pass of the verifier.",
        line(
            f"histogram_quantile(0.95, {_of_service('specinfer_speculator_draft_seconds_bucket', 'le, speculator')})",
            "{{speculator}}",
        ),
        unit="s",
    ),
    panel(
        "Faults of speculators",
        "Drafts that failed in their service, quarantines, collapsed acceptance (1 if collapsed), and "
        "contexts that had to be sent again.",
        "collapsed at 1: it is broken, or drafts for another model. A quarantine: a speculator sent "
        "malformed trees repeatedly. Constant resyncs: a service drops requests, its cache may be too small.",
        line(_of_service("specinfer_speculator_failures_total"), "failed {{speculator}}"),
        line(
            per_second("specinfer_speculator_quarantines_total", _BY, SPECULATOR),
            "quarantined {{speculator}}",
        ),
        line(
            f"max by (speculator) (specinfer_speculator_collapsed{{{SPECULATOR}}})",
            "collapsed {{speculator}}",
        ),
        line(per_second("specinfer_resyncs_total", "service"), "resync {{service}}"),
        unit="cps",
    ),
]
_PLANNER = [
    panel(
        "Nodes by speculator",
        "Nodes that were proposed, were kept for the verifier, or repeated another speculator's.",
        "most of a speculator's nodes are duplicates: it proposes the same as another one. Near zero with few "
        "requests: the planner measures no gain by drafts.",
        line(
            per_second("specinfer_tree_nodes_total", f"{_BY}, stage", SPECULATOR),
            "{{speculator}} {{stage}}",
        ),
        unit=PER_SECOND,
    ),
    panel(
        "Steps by reason",
        "Steps by the reason of the planner's choice.",
        "probes the most frequent for minutes: measurements are unstable.",
        line(per_second("specinfer_planner_steps_total", "reason"), "{{reason}}"),
        unit="cps",
        stacked=True,
    ),
    panel(
        "Actual over expected",
        "Seconds and new tokens of planned steps, each divided by what the planner expected.",
        "seconds far from 1 for minutes: the planner uses wrong costs. Tokens well below 1: scores of drafts are "
        "too high, so trees are too large.",
        line(
            share("specinfer_planner_actual_seconds_total", "specinfer_planner_expected_seconds_total"),
            "seconds",
        ),
        line(
            share("specinfer_planner_actual_tokens_total", "specinfer_planner_expected_tokens_total"),
            "tokens",
        ),
    ),
]
_TRAFFIC = [
    panel(
        "Tokens a step, held out",
        "Tokens per step of the weights in use on held-out texts, at the latest evaluation.",
        "a fall: the texts are of another kind; better weights should be offered within minutes.",
        line(f"{_LEARNING}_held_out_tokens_per_step", "{{instance}}"),
    ),
    panel(
        "Offers, swaps, weights taken back",
        "Offered weights, swaps and restored weights in the last hour.",
        "no offers for hours while requests run: their callers do not permit learning. Weights restored "
        "repeatedly: the training adapts to texts that do not recur.",
        *[
            line(f"increase({_LEARNING}_{name}_total[1h])", f"{name} {{{{instance}}}}")
            for name in ("offers", "swaps", "take_backs")
        ],
    ),
]
SPECULATION = board(
    "specinfer-speculation",
    "SpecInfer: speculation",
    "Drafts, trees, acceptance and the planner.",
    [
        MODEL,
        GATEWAY,
        variable(_BY, "Speculator", 'specinfer_spec_decode_num_drafts_total{instance=~"$instance"}'),
    ],
    {
        "Acceptance": _ACCEPTANCE,
        "Drafts": _DRAFTS,
        "Trees and planner": _PLANNER,
        "Learning from traffic": _TRAFFIC,
    },
)
