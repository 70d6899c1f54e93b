"""`python -m benchmarks quality MODEL`: distributions of formats against float32.

The reference is the checkpoint in float32 (for a GGUF file, its dequantised blocks) in the torch executor.
"""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from benchmarks.prompts import read_prompts_by_source
from benchmarks.publish import RESULTS
from benchmarks.tables import head, line, origin, with_sections
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import model_name, resolve_model
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.threads import use_threads
from specinfer.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
FORMATS = "auto,bf16,q8_0,q5_1,q5_0,q4_1,q4_0"
CACHE_TOKENS = 2048


def main(
    model: Annotated[str, typer.Argument(help="Name, directory or GGUF file.")],
    formats: Annotated[str, typer.Option(help="Formats, of those of --weights.")] = FORMATS,
    kv_type: Annotated[
        str, typer.Option(help="Format of the cache to compare with bfloat16, in place of weights.")
    ] = "",
    prompts: Annotated[
        list[Path] | None, typer.Option(help="Texts, JSONL; tests/data/prompts.jsonl.")
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="Texts, of all files equally many.")] = 20,
    tokens: Annotated[int, typer.Option(min=2, max=CACHE_TOKENS // 2, help="First tokens of each.")] = 128,
    threads: Annotated[int, typer.Option(help="Threads; 0: all that the process may use.")] = 0,
    out: Annotated[Path, typer.Option(help="Report, Markdown.")] = RESULTS / "quality.md",
) -> None:
    """Measure the quality of formats."""
    use_threads(threads)
    about = about_this_run("python -m benchmarks quality")
    directory = resolve_model(model)
    encoded = encode(directory, prompts or [ROOT / "tests/data/prompts.jsonl"], texts, tokens)
    exact = RunnerOptions("float32", executor="torch", weights="f32", kv_tokens=CACHE_TOKENS)
    compared = {name: RunnerOptions(weights=name, kv_tokens=CACHE_TOKENS) for name in formats.split(",")}
    if kv_type:
        exact = RunnerOptions(kv_tokens=CACHE_TOKENS)
        compared = {f"cache in {kv_type}": RunnerOptions(kv_tokens=CACHE_TOKENS, kv_type=kv_type)}
    wanted, _ = run(directory, exact, encoded)
    rows = []
    for name, options in compared.items():
        logits, shown_weights = run(directory, options, encoded)
        pairs = [distances(ours, reference) for ours, reference in zip(logits, wanted, strict=True)]
        kl, same = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        rows.append(Row(name, shown_weights, Distance.of(kl, same)))
        title = model_name(model) + (f", cache in {kv_type}" if kv_type else "")
        text = section(title, rows, len(encoded), sum(map(len, encoded)), about)
        old = out.read_text() if out.is_file() else ""
        out.write_text(with_sections(TITLE, old, {title: text}))
        console.print(rows[-1].line(), markup=False)


def encode(directory: Path, files: Sequence[Path], texts: int, tokens: int) -> list[list[int]]:
    """Return the beginnings of texts, as questions in a chat."""
    tokenizer = Tokenizer.load(directory)
    share = -(-texts // len(files))
    rows = [row for path in files for row in read_prompts_by_source(path, share)][:texts]
    return [tokenizer.encode_chat([{"role": "user", "content": row.text}])[:tokens] for row in rows]


def run(
    directory: Path, options: RunnerOptions, texts: Sequence[list[int]]
) -> tuple[list[torch.Tensor], str]:
    """Return all texts' logits [tokens, V], and the used formats."""
    runner = load_checked(directory, options)
    rows = []
    for text in texts:
        sequence = runner.open()
        chain = Segment(sequence, text[:1], text[1:], range(-1, len(text) - 2), want_last=True)
        rows += [logits.float() for logits in runner.forward([chain])]
        runner.cache.commit(sequence, ())
        runner.cache.release(sequence)
    formats = str(runner.weights)
    del runner
    gc.collect()
    return rows, formats


class Distance(NamedTuple):
    """Distance of a format from the reference."""

    mean: float
    """Mean KL divergence, in nats."""
    high: float
    """99th percentile of the KL divergences, in nats."""
    same: float
    """Share of positions with the same most probable token."""

    @classmethod
    def of(cls, kl: torch.Tensor, same: torch.Tensor) -> "Distance":
        return cls(kl.mean().item(), kl.quantile(0.99).item(), same.float().mean().item())


def distances(logits: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's KL divergence, and whether the top tokens are equal."""
    wanted = reference.log_softmax(-1)
    kl = (wanted.exp() * (wanted - logits.log_softmax(-1))).sum(-1)
    return kl, logits.argmax(-1) == reference.argmax(-1)


TITLE = """# Quality of the formats

Next-token distributions at all tokens of some texts, compared with those of the same checkpoint in float32.
KL: divergence from float32 in nats. First token: share of tokens after which the most probable token is the same.
"auto" is a GGUF file as it lies: its distance is what activations of 8 bits cost. Where the checkpoint is a quantised
file, the other rows quantise its dequantised numbers again: they show what the format adds, and the format of the
file itself looks too good. Caches (`--kv-type`) are compared with the same model and a cache in bfloat16.
"""


class Row(NamedTuple):
    """Results of one format."""

    name: str
    formats: str
    """Types used by the runner, with the reason."""
    distance: Distance

    def line(self) -> str:
        """Return this format's line of the table."""
        mean, high, same = self.distance
        return line(self.name, [f"{mean:.5f}", f"{high:.4f}", f"{same:.2%}", self.formats])


def section(title: str, rows: Sequence[Row], texts: int, tokens: int, about: dict[str, Any]) -> str:
    """Return the report's section on a model."""
    columns = ["KL, mean", "KL, 99th percentile", "same first token", "stored as"]
    lines = [
        f"## {title}",
        "",
        f"{origin(about)}; {texts} texts, {tokens} tokens.",
        "",
        *head(columns, "format"),
    ]
    return "\n".join([*lines, *(row.line() for row in rows), ""])


if __name__ == "__main__":
    typer.run(main)
