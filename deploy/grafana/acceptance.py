"""Define the speculation dashboard's rows of acceptance and trees."""

from deploy.grafana.dashboard import PanelRow
from deploy.grafana.panel import PER_SECOND, Panel, Query
from deploy.grafana.promql import SPECULATOR as CHOSEN
from deploy.grafana.promql import mean, per_second, quantile, ratio, share

_DECODE = "specinfer_spec_decode_num"
_BY = "speculator"


def _nodes(by: str, stage: str = "") -> str:
    return per_second("specinfer_tree_nodes_total", by, ", ".join(filter(None, (CHOSEN, stage))))


ACCEPTANCE = PanelRow(
    "Acceptance",
    (
        Panel(
            "Acceptance by speculator",
            "Share of the drafted tokens that the verifier accepted.",
            "a fall to less than half of the usual value: the prompts are of another kind, or a drafter has "
            "other weights than the verifier expects.",
            (
                Query(
                    share(f"{_DECODE}_accepted_tokens_total", f"{_DECODE}_draft_tokens_total", _BY, CHOSEN),
                    "{{speculator}}",
                ),
            ),
            unit="percentunit",
            most=1,
        ),
        Panel(
            "Accepted at each depth",
            "Accepted tokens of a step at each depth of the merged tree, over steps with a draft.",
            "the first depth below 30 %: first tokens are mostly wrong, so deeper nodes are useless.",
            (
                Query(
                    per_second(f"{_DECODE}_accepted_tokens_per_pos_total", "position")
                    + f" / on () group_left () ({per_second('specinfer_accepted_depth_count')} > 0)",
                    "depth {{position}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Tokens per step",
            "Mean new tokens of a request per pass: accepted tokens and the bonus token.",
            "near 1: speculation gains nothing, decoding is plain.",
            (Query(f"1 + {mean('specinfer_accepted_depth', 'instance')}", "{{instance}}"),),
        ),
        Panel(
            "Accepted depth",
            "Steps by number of accepted tokens.",
            "all at 0: no drafted token is accepted.",
            (Query(per_second("specinfer_accepted_depth_bucket", "le"), "{{le}}"),),
            kind="heatmap",
        ),
        Panel(
            "Wins",
            "Steps per second in which a speculator proposed the whole accepted path.",
            "a speculator that never wins only costs time.",
            (Query(per_second("specinfer_speculator_wins_total", _BY, CHOSEN), "{{speculator}}"),),
            unit="cps",
        ),
        Panel(
            "Scores of speculators",
            "Expected calibration error of scores, as received (said) and corrected; and AUC, the probability that an "
            "accepted candidate has a higher score than a rejected one.",
            "an error above 0.1 after correction: trees are cut at the wrong place. AUC near 0.5: scores do not "
            "predict acceptance, so larger trees do not help.",
            (
                Query(
                    f"max by (speculator, scores) (specinfer_speculator_calibration_error{{{CHOSEN}}})",
                    "error {{scores}} {{speculator}}",
                ),
                Query(f"max by (speculator) (specinfer_speculator_auc{{{CHOSEN}}})", "AUC {{speculator}}"),
            ),
            most=1,
        ),
    ),
)
TREES = PanelRow(
    "Trees",
    (
        Panel(
            "Nodes verified in a step",
            "Nodes of all trees in a step.",
            "near zero with few requests: the planner measures no gain by drafts. With many requests this is normal.",
            (
                Query(mean("specinfer_planner_step_nodes"), "mean"),
                Query(quantile(0.5, "specinfer_planner_step_nodes"), "p50"),
                Query(quantile(0.95, "specinfer_planner_step_nodes"), "p95"),
            ),
        ),
        Panel(
            "Nodes by speculator",
            "Nodes that were proposed, were kept for the verifier, or repeated another speculator's.",
            "most of a speculator's nodes are duplicates: it proposes the same as another one.",
            (
                Query(
                    _nodes(f"{_BY}, stage"),
                    "{{speculator}} {{stage}}",
                ),
            ),
            unit=PER_SECOND,
        ),
        Panel(
            "Duplicates",
            "Share of the proposed nodes that another speculator proposed, too.",
            "above a half for a slow speculator.",
            (
                Query(
                    ratio(_nodes(_BY, 'stage="duplicate"'), _nodes(_BY, 'stage="proposed"')),
                    "{{speculator}}",
                ),
            ),
            unit="percentunit",
            most=1,
        ),
    ),
)
