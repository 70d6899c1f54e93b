"""Define the speculation dashboard's row of learning."""

from deploy.grafana.dashboard import PanelRow
from deploy.grafana.panel import Panel, Query

_PREFIX = "specinfer_speculator_learning"
LEARNING = PanelRow(
    "Learning from traffic",
    (
        Panel(
            "Weights that draft",
            "Version of the weights in use at each learning service; 0: the initial weights.",
            "0 for hours: no weights are offered, or offers are refused.",
            (Query(f"{_PREFIX}_version", "{{instance}}"),),
        ),
        Panel(
            "Tokens a step, held out",
            "Tokens per step of the weights in use on held-out texts, at the latest evaluation.",
            "a fall: the texts are of another kind; better weights should be offered within minutes.",
            (Query(f"{_PREFIX}_held_out_tokens_per_step", "{{instance}}"),),
        ),
        Panel(
            "Texts to learn from",
            "Tokens of ended requests that each service keeps for learning.",
            "zero while requests run: their callers do not permit learning.",
            (Query(f"{_PREFIX}_replay_tokens", "{{instance}}"),),
        ),
        Panel(
            "Offers, swaps, weights taken back",
            "Offered weights, swaps and restored weights in the last hour.",
            "weights are restored repeatedly: the training adapts to texts that do not recur.",
            tuple(
                Query(f"increase({_PREFIX}_{name}_total[1h])", f"{name} {{{{instance}}}}")
                for name in ("offers", "swaps", "take_backs")
            ),
        ),
    ),
)
