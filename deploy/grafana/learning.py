"""The speculation dashboard's row of learning: weights, texts to learn from, swaps."""

from deploy.grafana.dashboard import PanelRow
from deploy.grafana.panel import Panel, Query

_PREFIX = "specinfer_speculator_learning"
LEARNING = PanelRow(
    "Learning from traffic",
    (
        Panel(
            "Weights that draft",
            "Number of the weights of each speculator service that learns; 0 for those it started with.",
            "0 for hours: offers are refused, or nobody offers any.",
            (Query(f"{_PREFIX}_version", "{{instance}}"),),
        ),
        Panel(
            "Tokens a step, held out",
            "What the weights that draft guess of texts that they were not trained on, when they were last judged.",
            "a fall: the texts are of another kind; better weights should be offered within minutes.",
            (Query(f"{_PREFIX}_held_out_tokens_per_step", "{{instance}}"),),
        ),
        Panel(
            "Texts to learn from",
            "Tokens of ended requests that each service keeps.",
            "zero while requests are drafted for: their callers do not allow it.",
            (Query(f"{_PREFIX}_replay_tokens", "{{instance}}"),),
        ),
        Panel(
            "Offers, swaps, weights taken back",
            "In the last hour.",
            "weights taken back again and again: the training follows texts that do not come again.",
            tuple(
                Query(f"increase({_PREFIX}_{name}_total[1h])", f"{name} {{{{instance}}}}")
                for name in ("offers", "swaps", "take_backs")
            ),
        ),
    ),
)
