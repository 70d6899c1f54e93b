"""Measure a draft's speed against plain decoding and the automatic draft."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from specinfer.drafters.draft import automatic_draft
from specinfer.llm.params import SamplingParams
from specinfer.llm.sync import LLM
from specinfer.scheduling.statistics import SpeculationCounts
from specinfer.system.turns import alternate, ratios

PROMPTS, NEW_TOKENS = 8, 48
"""Number of held-out prompts, and tokens of each answer."""
MIN_PROMPTS = 4
"""Minimum number of prompts for a range of speed-ups."""
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
    def doubt(self) -> str:
        """Reason why the speed-up is not known; "" if it is."""
        least, most = min(self.ratios), max(self.ratios)
        if len(self.ratios) < MIN_PROMPTS:
            return f"{len(self.ratios)} held-out prompts, {MIN_PROMPTS} are needed"
        if self.gain > self.tokens:
            return f"{self.gain:.2f}x is impossible with {self.tokens:.3f} tokens a step"
        return f"the range {least:.2f} to {most:.2f} contains 1" if least <= 1 <= most else ""

    def line(self) -> str:
        return (
            f"{self.draft}: {self.gain:.2f}x of plain decoding ({min(self.ratios):.2f} to {max(self.ratios):.2f}), "
            f"{self.plain:.1f} -> {self.gain * self.plain:.1f} tokens/s, {self.tokens:.3f} tokens a step"
        )


def compare(model: str, out: str, prompts: Sequence[Sequence[int]], device: str) -> list[Gains]:
    """Measure a checkpoint, and the model's automatic draft, if any.

    Args:
        model: the target.
        out: directory of the checkpoint.
        prompts: token ids of held-out prompts, the first `PROMPTS` of which are answered.
        device: torch device of the models.
    """
    drafts = [out, *filter(None, [automatic_draft(model)])]
    return [measure(model, draft, prompts[:PROMPTS], device) for draft in drafts]


def measure(model: str, draft: str, prompts: Sequence[Sequence[int]], device: str) -> Gains:
    """Load model and draft, and measure the draft."""
    with LLM(model, draft=draft, device=device, max_num_seqs=1) as llm:
        return measured(llm, draft, prompts)


def measured(llm: LLM, draft: str, prompts: Sequence[Sequence[int]]) -> Gains:
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
    tokens = NEW_TOKENS * len(prompts) / max(counts.steps, 1)
    draft_ms = 1000 * (llm.metrics["draft_seconds"] - before) / max(counts.steps, 1)
    return Gains(draft, median(rates["off"]), tuple(ratios(rates["tree"], rates["off"])), tokens, draft_ms)


def advice(model: str, gains: Sequence[Gains], corpus_tokens: int) -> Iterator[str]:
    """Yield the report's lines: speeds of all drafts, then a recommendation.

    Without a known gain, the last line has the reason.
    """
    current, *alternatives = gains
    prompts = f"{len(current.ratios)} held-out prompts, {NEW_TOKENS} greedy tokens each"
    yield f"end to end: {prompts}, one at a time, alternating the drafts"
    yield from (draft.line() for draft in gains)
    faster = [other for other in alternatives if not other.doubt and min(other.ratios) > max(current.ratios)]
    serve, unknown = f"specinfer serve --model {model} --draft", "not known whether to serve it"
    if corpus_tokens < MIN_CORPUS_TOKENS:
        yield f"{unknown}: {corpus_tokens:,} tokens in the corpus, {MIN_CORPUS_TOKENS:,} are needed"
    elif current.doubt:
        yield f"{unknown}: {current.doubt}; specinfer bench --model {model} --draft {current.draft} measures again"
    elif faster and min(faster[0].ratios) > 1:
        yield f"do not serve it: {faster[0].draft} is faster; {serve} {faster[0].draft}"
    elif max(current.ratios) < 1:
        yield f"do not serve it: it is not faster than plain decoding; {serve} none"
    elif any(max(other.ratios) > min(current.ratios) for other in alternatives):
        other = alternatives[0].draft
        yield f"serve it or {other}: it is not known which is faster; {serve} {current.draft}"
    else:
        yield f"serve it: {serve} {current.draft}"
