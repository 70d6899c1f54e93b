"""Our runtime alone, without services: passes, prefill, decoding, windows, long context."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.peers.measure import Recorder
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner

NODES = (1, 4, 8, 16, 32, 64)
CHUNK = 512
REPEATS = 15


def pass_costs(
    runner: ModelRunner, context: int, sizes: Sequence[int] = NODES
) -> dict[str, dict[str, float]]:
    """Return the milliseconds of passes by their number of nodes.

    A pass scores one token and a binary tree of n - 1 nodes, after a context.
    """
    rng = np.random.default_rng(0)
    sequence = runner.open()
    read(runner, sequence, rng.integers(0, 49000, context - 1).tolist())
    works: dict[int, Callable[[], None]] = {}
    for size in sizes:
        # the root is scored as a tentative node, so that nothing is committed and all sizes have
        # the same context
        parents = [-1, *((node - 1) // 2 for node in range(1, size))]
        tokens = rng.integers(0, 49000, size).tolist()

        def one_pass(tokens: list[int] = tokens, parents: list[int] = parents) -> None:
            runner.forward([Segment(sequence, (), tokens, parents)])
            runner.cache.commit(sequence, ())

        works[size] = one_pass
    costs = interleaved(works)
    runner.cache.release(sequence)
    return costs


def interleaved(works: dict[int, Callable[[], None]]) -> dict[str, dict[str, float]]:
    """Time several functions in alternation; return milliseconds by size.

    Alternation keeps the ratios of times stable while the machine's speed drifts.
    """
    times: dict[int, list[float]] = {size: [] for size in works}
    for turn in range(REPEATS + 1):
        for size, work in works.items():
            started = time.perf_counter()
            work()
            if turn:
                times[size].append(1000 * (time.perf_counter() - started))
    costs = {}
    for size, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        costs[str(size)] = {"median": round(middle, 3), "p25": round(low, 3), "p75": round(high, 3)}
    return costs


def read(runner: ModelRunner, sequence: KVSequence, tokens: Sequence[int]) -> None:
    """Read tokens into the cache, in chunks."""
    for start in range(0, len(tokens), CHUNK):
        runner.forward([Segment(sequence, tokens[start : start + CHUNK])])


def prefill(runner: ModelRunner, prompt: list[int]) -> float:
    """Return the median milliseconds of reading a prompt, without cached prefixes."""
    times = []
    for i in range(6):
        sequence = runner.open()
        fresh = [(token + i) % 49000 for token in prompt]
        started = time.perf_counter()
        runner.forward([Segment(sequence, fresh, want_last=True)])
        times.append(1000 * (time.perf_counter() - started))
        runner.cache.release(sequence)
    return statistics.median(times[1:])


def long_context(runner: ModelRunner, tokens: int = 8000) -> dict[str, Any]:
    """Measure reading `tokens` of context in chunks, then passes after it."""
    rng = np.random.default_rng(1)
    sequence = runner.open()
    started = time.perf_counter()
    read(runner, sequence, rng.integers(0, 49000, tokens).tolist())
    seconds = time.perf_counter() - started
    runner.cache.release(sequence)
    return {"tokens": tokens, "read_s": seconds, "passes_ms": pass_costs(runner, tokens, (1, 16, 32))}


def throughput(
    runner: ModelRunner, prompts: list[list[int]], batches: Sequence[int], few: int, new_tokens: int
) -> dict[str, float]:
    """Return greedy tokens per second by batch size.

    Prompts are included, as in the peers' measurements.
    """
    rates = {}
    for batch in batches:
        count = max(batch, few if batch == 1 else 2 * batch)
        decode(runner, prompts[:batch], 8)
        started = time.perf_counter()
        for start in range(0, count, batch):
            decode(runner, prompts[start : start + batch], new_tokens)
        rates[str(batch)] = count * new_tokens / (time.perf_counter() - started)
    return rates


def decode(runner: ModelRunner, prompts: list[list[int]], new_tokens: int) -> None:
    """Decode a batch greedily."""
    sequences = [runner.open() for _ in prompts]
    deltas = list(prompts)
    for _ in range(new_tokens):
        segments = [Segment(s, d, want_last=True) for s, d in zip(sequences, deltas, strict=True)]
        best = torch.cat(runner.forward(segments)).argmax(-1).tolist()
        deltas = [[token] for token in best]
    for sequence in sequences:
        runner.cache.release(sequence)


def single(runner: ModelRunner, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    """Return latencies, memory and outputs of greedy requests.

    Requests run one after another; the first warms up.
    """
    recorder = Recorder()
    for prompt in prompts:
        recorder.begin()
        output, _, _ = decode_one(runner, prompt, new_tokens, recorder.tick)
        recorder.end(output)
    return recorder.report()


def decode_one(
    runner: ModelRunner, prompt: list[int], new_tokens: int, tick: Callable[[], None] = lambda: None
) -> tuple[list[int], int, int]:
    """Decode one request greedily.

    Returns the output, the cached tokens at the end (in whole blocks), and how often the window moved.
    """
    sequence, delta = runner.open(), prompt
    output: list[int] = []
    slides = 0
    while len(output) < new_tokens:
        slides += runner.cache.slide(sequence, len(delta)) > 0
        (logits,) = runner.forward([Segment(sequence, delta, want_last=True)])
        output.append(int(logits[-1].argmax()))
        delta = output[-1:]
        tick()
    cached_len = len(sequence.blocks) * runner.cache.block_tokens
    runner.cache.release(sequence)
    return output, cached_len, slides


def window(runner: ModelRunner, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    """Measure speed, cache growth and outputs of long answers."""
    c = runner.config
    entry = c.layers * 2 * c.kv_heads * c.head_dim * 2  # bytes of one token's keys and values in bfloat16
    started = time.perf_counter()
    runs = [decode_one(runner, prompt, new_tokens) for prompt in prompts]
    seconds = time.perf_counter() - started
    grown = [cached_len - len(prompt) for (_, cached_len, _), prompt in zip(runs, prompts, strict=True)]
    return {
        "tokens_per_second": len(prompts) * new_tokens / seconds,
        "kv_growth_mib": statistics.mean(grown) * entry / 2**20,
        "compressions": sum(slides for _, _, slides in runs),
        "outputs": [output for output, _, _ in runs],
    }


def perplexity(runner: ModelRunner, prompts: list[list[int]], outputs: list[list[int]]) -> float:
    """Return the perplexity of outputs under the whole target.

    Perplexity is e to the mean negative log-probability of a token.
    """
    losses: list[float] = []
    for prompt, output in zip(prompts, outputs, strict=True):
        sequence = runner.open()
        read(runner, sequence, prompt[:-1])
        for start in range(0, len(output), CHUNK):
            fed = [prompt[-1], *output][start : start + min(CHUNK, len(output) - start)]
            chain = Segment(sequence, fed[:1], fed[1:], range(-1, len(fed) - 2), want_last=True)
            (logits,) = runner.forward([chain])
            runner.cache.commit(sequence, range(len(fed) - 1))
            wanted = torch.tensor(output[start : start + len(fed)])[:, None]
            losses += (-logits.log_softmax(-1).gather(-1, wanted)[:, 0]).tolist()
        runner.cache.release(sequence)
    return math.exp(statistics.mean(losses))
