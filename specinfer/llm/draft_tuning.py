"""Measures a draft's variants on this machine, for `specinfer models tune`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from specinfer.drafters.draft import automatic_draft, check_draft, method_of
from specinfer.drafters.pools import Flags, load_drafters
from specinfer.drafters.tuned import VARIANTS, as_setting
from specinfer.errors import NotFoundError
from specinfer.hub import resolve_model
from specinfer.llm.build import build_engine
from specinfer.llm.draft_gains import Gains, measured
from specinfer.llm.options import LLMOptions
from specinfer.llm.sync import LLM
from specinfer.model.formats.weights_in_format import NOT_COUNTED, WeightFormats
from specinfer.options.model_options import AUTO_DRAFT, NO_DRAFT
from specinfer.system.turns import ratios
from specinfer.text.tokenizer import Tokenizer

_OPTIONS = LLMOptions(adaptive=False, tree_nodes=3, max_num_seqs=1, kv_tokens=4096)
"""Options of the measured model: all trees have three nodes."""
_CLEARLY = 1.02
"""Minimum median speed relative to the default of a variant to keep."""
PROMPTS = (
    "Write a Python function that returns the longest common prefix of a list of strings.",
    "Explain to a beginner why the sky is blue during the day and red at sunset.",
    "Write a JavaScript class for a queue with enqueue, dequeue and size, with comments.",
    "Write a polite e-mail that asks a supplier to deliver an order one week earlier.",
    "Implement binary search in C, with a test for an empty array.",
    "A train leaves at 9:40 and arrives at 13:05. How long does it travel? Explain each step.",
    "Write an SQL query for the ten customers with the highest sum of orders this year.",
    "List five advantages and five disadvantages of working from home.",
)
"""Prompts of code and chat, alternating."""


@dataclass(frozen=True, slots=True)
class MeasuredVariant:
    """A draft's measured settings."""

    flags: Flags
    gains: Gains
    formats: WeightFormats


def draft_to_tune(model: str, draft: str) -> str:
    """Return the named draft, or the automatic one.

    Raises:
        NotFoundError: if there is no draft, or its method has no variants.
    """
    name = automatic_draft(model) if draft == AUTO_DRAFT else draft
    if not name:
        raise NotFoundError(
            f"model = {model!r}: no draft of it is on this machine: `specinfer pull` one first"
        )
    check_draft(model, name)
    if (method := method_of(resolve_model(name))) not in VARIANTS:
        raise NotFoundError(f"draft = {name!r}: drafts of {method} have no variants to tune")
    return name


def measure_variants(
    model: str, draft: str, texts: Sequence[str], advance: Callable[[str], None]
) -> Iterator[MeasuredVariant]:
    """Measure all variants of a draft, the default first; yield each when it is measured.

    Every prompt is answered plainly and with trees in turns, so variants can be compared by their speed-ups.

    Args:
        model: the target.
        draft: result of `draft_to_tune`.
        texts: prompts; turns of a user if the model has a chat template.
        advance: called with a text before each variant.
    """
    method = method_of(resolve_model(draft))
    engine, tokenizer = build_engine(model, NO_DRAFT, None, _OPTIONS)
    prompts = [_encode(tokenizer, text) for text in texts]
    measured_before: list[object] = []
    with LLM.of(engine, tokenizer) as llm:
        for number, flags in enumerate(VARIANTS[method], 1):
            label = as_setting(flags)
            advance(f"measuring {draft} with {label} ({number} of {len(VARIANTS[method])})")
            engine.use_drafters([])  # frees the variant before
            all_flags = {"drafter": method, "model": draft, "kv-tokens": str(_OPTIONS.kv_tokens), **flags}
            drafters = load_drafters("draft", all_flags, _OPTIONS.for_drafts(model))
            formats = getattr(drafters[method], "formats", NOT_COUNTED)
            settings = formats.counts, {**flags, "weights": ""}
            if settings not in measured_before:
                measured_before.append(settings)
                engine.use_drafters([drafters])
                yield MeasuredVariant(flags, measured(llm, label, prompts), formats)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def fastest(variants: Sequence[MeasuredVariant]) -> MeasuredVariant:
    """Return the variant to keep: the default, unless another one is clearly faster."""
    default = variants[0]
    speeds = [median(ratios(variant.gains.ratios, default.gains.ratios)) for variant in variants]
    best = max(range(len(variants)), key=speeds.__getitem__)
    return variants[best] if speeds[best] >= _CLEARLY else default
