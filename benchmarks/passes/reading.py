"""Measure how fast prompts are read, alone and while other requests decode.

It also measures how much reading slows the other requests. Run `python -m benchmarks.passes.reading`. All cases share
one `AsyncLLM` with a draft. Prompts are random tokens, so that no prefix is cached.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.passes.__main__ import numbers
from benchmarks.prompts import mixed_texts
from benchmarks.publish import RESULTS
from benchmarks.tables import head, line, origin, with_sections
from specinfer.cli.about import about_this_run
from specinfer.cli.demo import PAIR
from specinfer.cli.show import console
from specinfer.hub import model_name
from specinfer.llm import AsyncLLM, SamplingParams

_STEADY_S = 10.0
"""Seconds for which decoding is measured before a prompt arrives."""
_WARM_TOKENS = 8
_FOREVER = 4000
"""Tokens of a request that is cancelled when its case is measured."""
_CACHE_TOKENS = 65536
TITLE = """# Reading prompts

Tokens per second of prompts that arrive together, and the tokens per second of all requests that decode meanwhile, in
the ten seconds before the prompts arrive and until their last one has its first token.
"""


@dataclass(slots=True)
class Decoders:
    """Requests that decode during a measurement."""

    llm: AsyncLLM
    tokens: int = 0
    """Tokens of all requests so far."""
    tasks: list[asyncio.Task[object]] = field(default_factory=list)

    async def start(self, prompts: Sequence[str]) -> None:
        """Start a request for each prompt; return when all of them decode."""
        warm = [asyncio.Event() for _ in prompts]
        for prompt, event in zip(prompts, warm, strict=True):
            self.tasks.append(asyncio.create_task(self._decode(prompt, event)))
        for event in warm:
            await event.wait()

    async def _decode(self, prompt: str, warm: asyncio.Event) -> None:
        decoded, params = 0, SamplingParams(temperature=0, max_tokens=_FOREVER, ignore_eos=True)
        async for delta in self.llm.stream(prompt, params):
            decoded += len(delta.token_ids)
            self.tokens += len(delta.token_ids)
            if decoded >= _WARM_TOKENS:
                warm.set()

    async def stop(self) -> None:
        """Cancel the requests."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def main(
    model: str = PAIR[0],
    draft: str = PAIR[1],
    prompts: Annotated[Path, typer.Option(help="Prompts of decoding requests, JSONL.")] = Path(
        "tests/data/prompts.jsonl"
    ),
    lengths: Annotated[str, typer.Option(help="Tokens of a prompt.")] = "512,2048",
    at_once: Annotated[str, typer.Option(help="Prompts that arrive together.")] = "1,4",
    decoding: Annotated[str, typer.Option(help="Decoding requests while a prompt is read.")] = "1,4",
    out: Annotated[Path, typer.Option(help="Report, Markdown.")] = RESULTS / "reading.md",
) -> None:
    """Measure how prompts are read."""
    sizes, counts, others = (
        numbers(name, text)
        for name, text in (("lengths", lengths), ("at-once", at_once), ("decoding", decoding))
    )
    about = about_this_run("python -m benchmarks.passes.reading")
    cases = [(size, count, 0) for size in sizes for count in counts] + [
        (size, 1, other) for size in sizes for other in others
    ]
    rows = asyncio.run(_measure(model, draft, mixed_texts(prompts), cases))
    text = "\n".join([f"## {model_name(model)}", "", f"{origin(about)}; draft {draft}.", "", *rows, ""])
    old = out.read_text() if out.is_file() else ""
    out.write_text(with_sections(TITLE, old, {model_name(model): text}))
    console.print(text, markup=False)


async def _measure(
    model: str, draft: str, texts: Sequence[str], cases: Sequence[tuple[int, int, int]]
) -> list[str]:
    columns = [
        "read, tokens/s",
        "decoding before, tokens/s",
        "decoding meanwhile, tokens/s",
        "of the pace before",
    ]
    rows = head(columns, "tokens x prompts, decoding requests")
    rng = np.random.default_rng(0)
    async with AsyncLLM(model, draft=draft, max_num_seqs=16, kv_tokens=_CACHE_TOKENS) as llm:
        for size, count, others in cases:
            decoders = Decoders(llm)
            await decoders.start(texts[:others])
            started, before = time.perf_counter(), decoders.tokens
            await asyncio.sleep(_STEADY_S if others else 0)
            pace = (decoders.tokens - before) / (time.perf_counter() - started)
            prompts = rng.integers(1000, 50_000, (count, size)).tolist()
            started, before = time.perf_counter(), decoders.tokens
            params = SamplingParams(temperature=0, max_tokens=1)
            await asyncio.gather(*(llm.generate({"prompt_token_ids": p}, params) for p in prompts))
            seconds = time.perf_counter() - started
            meanwhile = (decoders.tokens - before) / seconds
            await decoders.stop()
            cells = [f"{count * size / seconds:.0f}"]
            cells += (
                [f"{pace:.1f}", f"{meanwhile:.1f}", f"{meanwhile / pace:.2f}x"] if others else ["", "", ""]
            )
            rows.append(line(f"{size} x {count}, {others}", cells))
            console.print(rows[-1], markup=False)
    return rows


if __name__ == "__main__":
    typer.run(main)
