"""`python -m benchmarks contexts MODEL`: measures long contexts by the storage of keys and values."""

import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.contexts import quality, steps
from benchmarks.passes.__main__ import numbers
from benchmarks.publish import RESULTS
from benchmarks.tables import origin, with_sections
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import model_name, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.threads import use_threads
from specinfer.tokenizer import Tokenizer

REFERENCE, COMPARED = "bf16", "q8_0"
TITLE = """# Long contexts

Keys and values in bfloat16 and in 8 bits (`--kv-type q8_0`: one scale per token and head).
Steps: milliseconds of a pass over all rows with logits, medians of turns with the minimum in brackets. The storages
take turns in one process; with --processor-time they are processor time of one thread.
Quality: next-token distributions at the last 128 tokens of 20 texts (sources of the standard library), compared with
those of the same model with a cache in bfloat16. KL in nats.
"""


def main(
    model: Annotated[str, typer.Argument(help="Name, directory or GGUF file.")],
    contexts: Annotated[str, typer.Option(help="Tokens before the steps.")] = "256,4096,8192",
    requests: Annotated[str, typer.Option(help="Requests of a step.")] = "1,4",
    rows: Annotated[str, typer.Option(help="Rows of each request.")] = "1,8",
    turns: Annotated[int, typer.Option(min=0, help="Turns of the storages; 0: no steps.")] = 7,
    texts: Annotated[int, typer.Option(min=0, max=20, help="Texts, the longest last; 0: none.")] = 20,
    threads: Annotated[int, typer.Option(help="Threads; 0: all that the process may use.")] = 0,
    processor_time: Annotated[
        bool,
        typer.Option("--processor-time", help="Count processor seconds of one thread: beside other work."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Report, Markdown.")] = RESULTS / "long-contexts.md",
) -> None:
    """Measure steps and quality."""
    use_threads(1 if processor_time else threads)
    about = about_this_run("python -m benchmarks contexts")
    directory, title = resolve_model(model), model_name(model)
    kinds = steps.steps_of(*map(numbers, ("contexts", "requests", "rows"), (contexts, requests, rows)))
    longest = max(
        max(kind.tokens for kind in kinds) if turns else 0, quality.LENGTHS[0] + 512 if texts else 0
    )
    runners = {name: load(directory, name, longest) for name in (REFERENCE, COMPARED)}
    memory = ", ".join(
        f"{name} {runner.cache_bytes / longest / 1e3:.1f} kB" for name, runner in runners.items()
    )

    def write(part: str, lines: list[str]) -> None:
        text = "\n".join([f"## {title}: {part}", "", f"{origin(about)}. A token takes {memory}.", "", *lines])
        old = out.read_text() if out.is_file() else ""
        out.write_text(with_sections(TITLE, old, {f"{title}: {part}": text}))
        console.print(text, markup=False)

    if turns:
        clock = time.process_time if processor_time else time.perf_counter
        models = {name: steps.LongContexts(runner, clock) for name, runner in runners.items()}
        found = {}
        for kind in kinds:
            found[kind] = steps.measure(models, kind, turns)
            write("steps", steps.table(found))
    if texts:
        encoded = quality.texts(Tokenizer.load(directory))[::-1][:texts]
        for found_so_far in quality.compare(runners[REFERENCE], runners[COMPARED], encoded):
            write("quality", quality.table(found_so_far))


def load(directory: Path, kv_type: str, tokens: int) -> ModelRunner:
    """Return a runner with this storage of keys and values."""
    return load_checked(directory, RunnerOptions(kv_tokens=tokens, kv_type=kv_type))


if __name__ == "__main__":
    typer.run(main)
