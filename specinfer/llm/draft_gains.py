"""Measure drafts' speed against plain decoding."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.progress import track

from specinfer.llm.params import SamplingParams
from specinfer.llm.sync import LLM
from specinfer.scheduling.statistics import SpeculationCounts
from specinfer.system.turns import alternate, ratios

PROMPTS, NEW_TOKENS = 40, 48
"""Number of held-out prompts that a verdict needs, and tokens of each answer."""
MIN_CORPUS_TOKENS = 10_000
"""Minimum tokens of a corpus whose draft may be recommended."""


@dataclass(frozen=True, slots=True)
class Gains:
    """Speed-ups of a draft over plain decoding, measured alternately."""

    draft: str
    """Value for `--draft`."""
    plain: float
    """Tokens per second of plain decoding."""
    ratios: tuple[float, ...]
    """Speed-up of each prompt; the first include the planner's learning."""
    tokens: float
    """Tokens per step with the draft: plain decoding has 1."""
    draft_ms: float = 0.0
    """Milliseconds of a draft, all levels."""

    @property
    def gain(self) -> float:
        return median(self.ratios)

    @property
    def range(self) -> tuple[float, float]:
        return median_range(self.ratios)

    @property
    def doubt(self) -> str:
        """Reason why the speed-up is not known; "" if it is."""
        least, most = self.range
        if len(self.ratios) < PROMPTS:
            return f"{len(self.ratios)} held-out prompts, {PROMPTS} are needed"
        if self.gain > self.tokens:
            return f"{self.gain:.2f}x is impossible with {self.tokens:.3f} tokens a step"
        return f"the range {least:.2f} to {most:.2f} contains 1" if least <= 1 <= most else ""

    def line(self) -> str:
        least, most = self.range
        return (
            f"{self.draft}: {self.gain:.2f}x of plain decoding ({least:.2f} to {most:.2f}), "
            f"{self.plain:.1f} -> {self.gain * self.plain:.1f} tokens/s, {self.tokens:.3f} tokens a step"
        )


def median_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range that contains the true median in 19 of 20 measurements, by its rank."""
    ordered, count = sorted(values), len(values)
    outside = max(0, math.floor((count - 1.96 * count**0.5) / 2))
    return ordered[outside], ordered[-1 - outside]


def compare(model: str, drafts: Sequence[str], prompts: Sequence[Sequence[int]], device: str) -> list[Gains]:
    """Measure drafts of a model, one after the other, and show progress.

    Args:
        model: the target.
        drafts: values for `--draft`.
        prompts: token ids of held-out prompts, the first `PROMPTS` of which are answered.
        device: torch device of the models.
    """
    gains, console = [], Console(stderr=True)
    for draft in drafts:
        with LLM(model, draft=draft, device=device, max_num_seqs=1) as llm:
            shown = track(prompts[:PROMPTS], f"measuring {escape(draft)}", console=console)
            gains.append(measured(llm, draft, shown))
    return gains


def measured(llm: LLM, draft: str, prompts: Iterable[Sequence[int]]) -> Gains:
    """Answer prompts greedily, one at a time, plainly and with trees."""
    rates: dict[str, list[float]] = {"off": [], "tree": []}
    counts, before = SpeculationCounts(), llm.metrics["draft_seconds"]
    for number, prompt in enumerate(prompts):
        for speculation in alternate(rates, number):
            params = SamplingParams(
                temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, speculation=speculation
            )
            began = time.perf_counter()
            (output,) = llm.generate([{"prompt_token_ids": list(prompt)}], params, use_tqdm=False)
            if speculation == "tree" and output.metrics is not None:
                counts += output.metrics.speculative_decoding
            rates[speculation].append(NEW_TOKENS / (time.perf_counter() - began))
    tokens = NEW_TOKENS * len(rates["off"]) / max(counts.steps, 1)
    draft_ms = 1000 * (llm.metrics["draft_seconds"] - before) / max(counts.steps, 1)
    return Gains(draft, median(rates["off"]), tuple(ratios(rates["tree"], rates["off"])), tokens, draft_ms)


def advice(
    model: str, trained: Sequence[Gains], others: Sequence[Gains], corpus_tokens: int
) -> Iterator[str]:
    """Yield the report's lines: speeds of all drafts, then a recommendation.

    Drafts are compared by their speed-ups of the same prompts. Without a known gain of the fastest trained draft, the
    last line has the reason.

    Args:
        others: the present draft, if there is one, and n-grams, with which trained drafts are combined.
    """
    current = max(trained, key=lambda draft: draft.gain)
    prompts = f"{len(current.ratios)} held-out prompts, {NEW_TOKENS} greedy tokens each"
    yield f"end to end: {prompts}, one at a time, in turns with plain decoding"
    yield from (draft.line() for draft in (*trained, *others))
    known = [other for other in others if not other.doubt and other.gain > 1]
    versus = {other.draft: median_range(ratios(current.ratios, other.ratios)) for other in known}
    faster = [other for other in known if versus[other.draft][1] < 1]
    equal = [name for name, (least, most) in versus.items() if least <= 1 <= most]
    serve, unknown = f"specinfer serve --model {model} --draft", "not known whether to serve it"
    if corpus_tokens < MIN_CORPUS_TOKENS:
        yield f"{unknown}: {corpus_tokens:,} tokens in the corpus, {MIN_CORPUS_TOKENS:,} are needed"
    elif current.doubt:
        yield f"{unknown}: {current.doubt}; specinfer bench --model {model} --draft {current.draft} measures again"
    elif faster:
        best = max(faster, key=lambda other: other.gain).draft
        yield f"do not serve it: {best} is faster; {serve} {best}"
    elif current.range[1] < 1:
        yield f"do not serve it: it is not faster than plain decoding; {serve} none"
    elif equal:
        yield f"serve it or {equal[0]}: it is not known which is faster; {serve} {current.draft}"
    else:
        yield f"serve it: {serve} {current.draft}"
