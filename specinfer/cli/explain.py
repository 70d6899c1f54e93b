"""`specinfer up --explain`: what the started system chose by itself, and why."""

from collections.abc import Mapping

from specinfer.cli.local import LocalOptions
from specinfer.cli.speculators import Flags, default_speculators
from specinfer.v1 import verifier_pb2

MOST_SIZES = 8
"""Of passes that are shown."""


def explanation(options: LocalOptions, told: verifier_pb2.DescribeVerifierReply) -> list[tuple[str, str]]:
    """(what, choice and reason) in the order in which they are decided."""
    asked = options.verifier.get("weights", "auto")
    return [
        ("weights", weights_words(asked, told.weights)),
        ("passes", f"{passes_words(told)} (measured when the verifier started)"),
        ("speculators", pool_words(options)),
        (
            "each step",
            "takes the speculators and nodes that promise the most tokens per second by what was measured so "
            "far, plain decoding included; `specinfer status --watch` shows them",
        ),
    ]


def weights_words(asked: str, held: str) -> str:
    """How the target is held."""
    if asked != "auto":
        return f"{held}, as asked"
    if held == "native-a8":
        return (
            "native-a8: the model came as a GGUF file, and the compiled kernels multiply its blocks as they "
            "are, with activations in 8 bits"
        )
    return "converted to --dtype: no GGUF file came with the model, or no kernels for its blocks run here"


def passes_words(told: verifier_pb2.DescribeVerifierReply) -> str:
    """What a pass takes by its tokens, and how many single tokens that is."""
    costs = sorted((cost.tokens, cost.microseconds / 1000) for cost in told.pass_costs)
    if not costs:
        return "not measured"
    shown = [costs[0], *(cost for cost in costs[1:] if cost[0] & (cost[0] - 1) == 0)][:MOST_SIZES]
    first = shown[0][1]
    return ", ".join(f"{n} tokens {ms:.1f} ms ({ms / first:.1f}x)" for n, ms in shown)


def pool_words(options: LocalOptions) -> str:
    """Who drafts."""
    if options.speculators is not None:
        return f"{_members(options.speculators)}, as asked"
    pool = default_speculators(options.model, options.verifier.get("offload", "none") != "none")
    models = [flags["model"] for flags in pool.values() if "model" in flags]
    if models:
        return f"{_members(pool)}: {', '.join(models)} ships for {options.model}"
    return f"{_members(pool)}: no trained speculator ships for {options.model}; `specinfer train` makes one"


def _members(pool: Mapping[str, Flags]) -> str:
    return ", ".join(flags["drafter"].replace("+", ", ") for flags in pool.values())
