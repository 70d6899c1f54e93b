"""Measure passes of a recurrent model: compiled kernels and `transformers`.

Run it with `python -m benchmarks.passes.hybrids`. The model has the shape of Qwen 3.5 0.8B and random weights, so only
times are meaningful.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.passes.__main__ import numbers
from benchmarks.passes.borrowed import gains_table
from benchmarks.passes.measure import spread
from benchmarks.publish import RESULTS
from benchmarks.tables import head, line, origin, with_sections
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.options import DTYPES, RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.threads import use_threads
from specinfer.model.weights.config_files import from_transformers

SHAPE = {
    "vocab_size": 248320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "tie_word_embeddings": True,
}
TITLE = """# Passes of recurrent layers

Random weights in the shape of Qwen 3.5 0.8B: three of four layers are gated delta nets, with 16 heads of 128 x 128.
Each pass gives logits for each of its rows, which follow a context. Chain: each row follows the one before. Tree: two
children to a row. Medians of turns in which the systems alternate; in brackets the minimum and maximum.
Next token: a pass of one row that stays in the context, as plain decoding has it.
"""
KERNELS = "compiled kernels"
KINDS = {"chain": lambda row: row - 1, "tree": lambda row: (row - 1) // 2}


def random_model(layers: int, dtype: torch.dtype) -> Any:
    """Return a model of Qwen 3.5's shape with random weights."""
    from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    config = Qwen3_5TextConfig(**SHAPE, num_hidden_layers=layers, max_position_embeddings=4096)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


class ContextPasses:
    """A model with a context in its cache."""

    def __init__(self, runner: ModelRunner, context: int) -> None:
        self._runner, self._rng = runner, np.random.default_rng(0)
        self._sequence: KVSequence = runner.open()
        runner.forward([Segment(self._sequence, self._tokens(context))])

    def _tokens(self, count: int) -> list[int]:
        return [*map(int, self._rng.integers(0, self._runner.config.vocab_size, count))]

    def milliseconds(self, kind: str, rows: int) -> float:
        """Return milliseconds of a tree of `rows` nodes; none is accepted."""
        tokens, parents = self._tokens(rows), [KINDS[kind](row) for row in range(rows)]
        started = time.perf_counter()
        self._runner.forward([Segment(self._sequence, (), tokens, parents)])
        taken = time.perf_counter() - started
        self._runner.cache.commit(self._sequence, ())
        return 1000 * taken

    def next_token(self) -> float:
        """Return milliseconds of a pass of plain decoding."""
        (token,) = self._tokens(1)
        started = time.perf_counter()
        self._runner.forward([Segment(self._sequence, [token], want_last=True)])
        return 1000 * (time.perf_counter() - started)


def measure(
    systems: dict[str, ContextPasses], sizes: Sequence[int], turns: int
) -> dict[str, dict[str, list[float]]]:
    """Return milliseconds of every turn by kind of pass and system."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for turn in range(turns + 1):  # the first turn warms up
        for name in sorted(systems, reverse=turn % 2 == 0):
            passes = systems[name]
            times = {"next token": [passes.next_token()]}
            for kind in KINDS:
                times |= {f"{kind} of {rows}": [passes.milliseconds(kind, rows)] for rows in sizes}
            for what, values in times.items():
                seconds.setdefault(what, {}).setdefault(name, []).extend(values if turn else [])
    return seconds


def seconds_by_rows(seconds: dict[str, dict[str, list[float]]], sizes: Sequence[int]) -> dict[int, float]:
    """Return our kernels' median seconds of passes over trees, by rows.

    The entry of one row is plain decoding.
    """
    kinds = {rows: f"tree of {rows}" for rows in sizes} | {1: "next token"}
    return {rows: median(seconds[kind][KERNELS]) / 1000 for rows, kind in kinds.items()}


def main(
    layers: Annotated[int, typer.Option(min=4, help="Layers; the model has 24.")] = 24,
    rows: Annotated[str, typer.Option(help="Rows of the passes.")] = "1,2,4,8",
    context: Annotated[int, typer.Option(min=1, help="Tokens before the passes.")] = 256,
    dtype: Annotated[str, typer.Option(help="Numeric type of both systems.")] = "bfloat16",
    turns: Annotated[int, typer.Option(min=1, help="Turns of the systems.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads; 0: all that the process may use.")] = 0,
    out: Annotated[Path, typer.Option(help="Report, Markdown.")] = RESULTS / "hybrids.md",
) -> None:
    """Measure passes of both executors."""
    use_threads(threads)
    model = random_model(layers, DTYPES[dtype])
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    options = RunnerOptions(dtype=dtype, kv_tokens=2048, executor="native")
    systems = {
        KERNELS: ContextPasses(ModelRunner.build(from_transformers(model.config), weights, options), context),
        "transformers": ContextPasses(
            ModelRunner.wrap(model, model.config, RunnerOptions(dtype, kv_tokens=2048)), context
        ),
    }
    seconds = measure(systems, numbers("rows", rows), turns)
    title = f"{layers} layers in {dtype}, {context} tokens before"
    about = about_this_run("python -m benchmarks.passes.hybrids")
    lines = [f"## {title}", "", f"{origin(about)}. Random weights.", ""]
    lines += head([f"{name}, ms" for name in systems], "pass")
    lines += [line(what, [spread(times[name]) for name in systems]) for what, times in seconds.items()]
    lines += ["", *gains_table(seconds_by_rows(seconds, numbers("rows", rows)))]
    text = "\n".join([*lines, ""])
    out.write_text(with_sections(TITLE, out.read_text() if out.is_file() else "", {title: text}))
    console.print(text, markup=False)


if __name__ == "__main__":
    typer.run(main)
