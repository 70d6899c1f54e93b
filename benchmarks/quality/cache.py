"""`python -m benchmarks.quality.cache MODEL`: distributions with an 8-bit cache.

The distributions follow long texts. The reference is the same model with a cache in bfloat16.
"""

import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.publish import RESULTS
from benchmarks.quality.distance import Distance, distances
from benchmarks.tables import head, line, origin, with_sections
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import model_name, resolve_model
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.threads import use_threads
from specinfer.tokenizer import Tokenizer

TITLE = """# Quality of a cache in 8 bits

Next-token distributions at the last 128 tokens of 20 texts (sources of the standard library) with `--kv-type q8_0`
(one scale per token and head), compared with those of the same model with a cache in bfloat16. KL in nats.
"""
COMPARED = 128
"""Number of a text's last tokens that are compared."""
_CHUNK = 512
LENGTHS = (8000, 4000, 4000, *[2000] * 4, *[1000] * 6, *[500] * 7)
"""Tokens of the texts."""
MODULES = (
    *("argparse", "ast", "calendar", "codecs", "configparser", "csv", "dataclasses", "typing", "pickle"),
    *("difflib", "doctest", "enum", "fractions", "ftplib", "functools", "heapq", "inspect", "ipaddress"),
    *("locale", "mailbox"),
)
"""Modules of the standard library, whose sources are the texts."""


def load_texts(tokenizer: Tokenizer) -> list[list[int]]:
    """Return texts of `LENGTHS`; longer modules make longer texts."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = sorted(((library / f"{name}.py").read_text("utf-8") for name in MODULES), key=len, reverse=True)
    encoded = [tokenizer.encode(source[: 8 * LENGTHS[0]]) for source in sources]
    return [tokens[:length] for tokens, length in zip(encoded, LENGTHS, strict=True)]


def last_logits(runner: ModelRunner, text: Sequence[int]) -> torch.Tensor:
    """Return the logits [COMPARED, V] after the last tokens of a text."""
    sequence, read = runner.open(), len(text) - COMPARED
    for start in range(0, read, _CHUNK):
        runner.forward([Segment(sequence, text[start : min(start + _CHUNK, read)])])
    chain = Segment(
        sequence, text[read : read + 1], text[read + 1 :], range(-1, COMPARED - 2), want_last=True
    )
    (logits,) = runner.forward([chain])
    runner.cache.commit(sequence, ())
    runner.cache.release(sequence)
    return logits.float()


def compare(
    reference: ModelRunner, runner: ModelRunner, encoded: Sequence[Sequence[int]]
) -> Iterator[dict[int, Distance]]:
    """Yield distances by text length (0: all texts), updated after each text."""
    pairs_by_length: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {0: []}
    for text in encoded:
        pair = distances(last_logits(runner, text), last_logits(reference, text))
        pairs_by_length.setdefault(len(text), []).append(pair)
        pairs_by_length[0].append(pair)
        yield {
            length: Distance.of(*(torch.cat(parts) for parts in zip(*pairs, strict=True)))
            for length, pairs in pairs_by_length.items()
        }


def table(distances: dict[int, Distance]) -> list[str]:
    lines = head(["KL, mean", "KL, 99th percentile", "same first token"], "tokens of a text")
    for length, (mean, high, same) in distances.items():
        lines.append(line(str(length or "all"), [f"{mean:.5f}", f"{high:.4f}", f"{same:.2%}"]))
    return lines


def main(
    model: Annotated[str, typer.Argument(help="Name, directory or GGUF file.")],
    texts: Annotated[int, typer.Option(min=1, max=len(LENGTHS), help="Texts, the longest last.")] = len(
        LENGTHS
    ),
    threads: Annotated[int, typer.Option(help="Threads; 0: all that the process may use.")] = 0,
    out: Annotated[Path, typer.Option(help="Report, Markdown.")] = RESULTS / "cache-quality.md",
) -> None:
    """Measure what a cache in 8 bits changes."""
    use_threads(threads)
    about = about_this_run("python -m benchmarks.quality.cache")
    directory, title = resolve_model(model), model_name(model)
    chosen = load_texts(Tokenizer.load(directory))[::-1][:texts]
    reference, runner = (
        load_checked(directory, RunnerOptions(kv_tokens=LENGTHS[0] + 2 * _CHUNK, kv_type=name))
        for name in ("bf16", "q8_0")
    )
    for by_length in compare(reference, runner, chosen):
        section = "\n".join([f"## {title}", "", f"{origin(about)}.", "", *table(by_length)])
        old = out.read_text() if out.is_file() else ""
        out.write_text(with_sections(TITLE, old, {title: section}))
        console.print(section, markup=False)


if __name__ == "__main__":
    typer.run(main)
