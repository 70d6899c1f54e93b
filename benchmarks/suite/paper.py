"""Figures of the SpecInfer paper (LLaMA-7B with LLaMA-68M) that ours are drawn beside."""

TOKENS_PER_STEP = {
    "greedy": {
        "Alpaca": (2.95, 3.07, 3.21, 3.33, 3.43),
        "CP": (2.58, 3.24, 3.46, 3.59, 3.69),
        "WebQA": (2.27, 2.69, 2.86, 2.98, 3.07),
        "CIP": (2.73, 3.40, 3.62, 3.79, 3.91),
        "PIQA": (2.18, 2.80, 2.97, 3.10, 3.21),
    },
    "stochastic": {
        "Alpaca": (1.79, 2.11, 2.26, 2.32, 2.38),
        "CP": (1.69, 1.99, 2.15, 2.23, 2.28),
        "WebQA": (1.64, 1.93, 2.08, 2.15, 2.21),
        "CIP": (1.72, 2.05, 2.19, 2.28, 2.29),
        "PIQA": (1.67, 1.93, 2.08, 2.15, 2.21),
    },
}
"""Table 2: by data set, with trees of width 1 to 5."""
