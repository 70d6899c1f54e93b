"""Kinds of SSM side by side: quantised, pruned, distilled (the paper's section 3), and what each costs.

Writes `benchmarks/results/ssm-kinds.json` and `.md`: of every kind its size, how often its first guess is
the target's token, tokens per step at some budgets, milliseconds per draft, and the speed over plain decoding
that follows from these. One process; times in turns over all kinds, alone on the machine.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.drafts.decoding import Decoding, Plan
from benchmarks.drafts.kinds_report import kinds_markdown
from benchmarks.drafts.prompts import Prompt, load_prompts
from benchmarks.drafts.success import guesses
from benchmarks.publish import RESULTS, publish
from specinfer.cli.about import about_this_run
from specinfer.cli.options import read_numbers
from specinfer.cli.show import console
from specinfer.drafters import Drafter, DrafterOptions, DraftJob, make_drafter
from specinfer.errors import InvalidInputError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import ModelConfig, load_config
from specinfer.model.weights.draft_checkpoint import is_draft_checkpoint, load_ssm, verifier_of
from specinfer.sampling import GREEDY
from specinfer.tree import TreeLimits

ROOT = Path(__file__).resolve().parent.parent
DEPTH, BEAM, BATCH, KV_TOKENS = 7, 4, 10, 16384
BITS = {"converted": 16.0, "w8a8": 8.0, "int8": 8.5, "int4": 5.0}
"""Of a weight, as it is held."""
CONTEXT = 128
"""Tokens of the context where times are taken."""
Times = dict[int, list[float]]
"""By nodes: lower quartile, median and upper quartile, milliseconds."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A drafter to measure."""

    name: str
    model: str
    layers: int = 0
    weights: str = "converted"

    @classmethod
    def read(cls, text: str) -> "Kind":
        """From `NAME:MODEL[,layers=N][,weights=W]`.

        Raises:
            InvalidInputError: if it cannot be read.
        """
        name, _, rest = text.partition(":")
        model, *pairs = rest.split(",")
        flags = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        weights, layers = flags.pop("weights", "converted"), flags.pop("layers", "0")
        if not model or flags or weights not in BITS or not layers.isdecimal():
            raise InvalidInputError("kind", text, "must be NAME:MODEL[,layers=N][,weights=W]")
        return cls(name, model, int(layers), weights)

    def drafter(self) -> Drafter:
        """Points; no branch ends early, so that budgets are used up."""
        return make_drafter(
            "ssm",
            DrafterOptions(
                model=self.model,
                layers=self.layers,
                weights=self.weights,
                kv_tokens=KV_TOKENS,
                beam=BEAM,
                depth=DEPTH,
                min_path_probability=0.0,
            ),
        )

    def config(self) -> ModelConfig:
        """Its shape."""
        directory = resolve_model(self.model)
        if is_draft_checkpoint(directory):
            return load_ssm(directory, resolve_model(verifier_of(directory))).config
        config = load_config(directory)
        return config.first_layers(self.layers) if self.layers else config


def matrix_parameters(config: ModelConfig) -> int:
    """Numbers that a level multiplies by: matrices of all layers, and the head."""
    attention = 2 * (config.heads + config.kv_heads) * config.head_dim * config.hidden_size
    mlp = (3 if config.gated else 2) * config.hidden_size * config.intermediate_size
    return config.layers * (attention + mlp) + config.vocab_size * config.hidden_size


class Bench:
    """The target, the kinds, and the prompts."""

    def __init__(self, kinds: Sequence[Kind], prompts: Sequence[Prompt], new_tokens: int) -> None:
        self._runner = ModelRunner.load(resolve_model(DEFAULT_MODEL), RunnerOptions())
        self._drafters = {kind: kind.drafter() for kind in kinds}
        self._prompts, self._new_tokens = prompts, new_tokens

    def quality(self, kind: Kind, budgets: Sequence[int]) -> dict[str, Any]:
        """First guesses that are right, and tokens per step by nodes."""
        drafter, config = self._drafters[kind], kind.config()
        found = guesses(self._runner, drafter, self._prompts, 0.0, self._new_tokens)
        places = [place for of_source in found.values() for place in of_source]
        numbers = matrix_parameters(config)
        report: dict[str, Any] = {
            "name": kind.name,
            "layers": config.layers,
            "weights": kind.weights,
            "million_parameters": round(numbers / 1e6, 1),
            "megabytes": round(numbers * BITS[kind.weights] / 8e6, 1),
            "top1": round(100 * sum(place == 0 for place in places) / len(places), 1),
            "tokens_per_step": {},
            "standard_error": {},
        }
        for nodes in budgets:
            plan = Plan(nodes, DEPTH, 0.0, self._new_tokens, BATCH, calibrated=True)
            result = Decoding(self._runner, [drafter], plan).run(self._prompts)
            report["tokens_per_step"][nodes] = round(result.tokens_per_step(), 3)
            report["standard_error"][nodes] = round(result.standard_error(), 3)
        return report

    def times(self, budgets: Sequence[int], rounds: int) -> tuple[dict[Kind, Times], Times]:
        """Of every kind's drafts, and of the target's passes, by nodes; 0 nodes: plain decoding. In turns."""
        context = [token for prompt in self._prompts for token in prompt.tokens]
        drafts: dict[Kind, dict[int, list[float]]] = {k: {n: [] for n in budgets} for k in self._drafters}
        passes: dict[int, list[float]] = {n: [] for n in (0, *budgets)}
        sequence = self._runner.open()
        self._runner.forward([Segment(sequence, context[:CONTEXT])])
        for number in range(rounds + 1):  # the first one reads the context
            for nodes, taken in passes.items():
                taken.append(milliseconds(lambda nodes=nodes: self._pass(sequence, nodes)))
            for kind, by_nodes in drafts.items():
                for place, (nodes, taken) in enumerate(by_nodes.items()):
                    read = context[: CONTEXT + len(budgets) * number + place + 1]
                    job = DraftJob("t", read, TreeLimits(nodes, DEPTH), GREEDY)
                    taken.append(milliseconds(lambda d=self._drafters[kind], job=job: d.draft([job])))
        return {kind: spread(by_nodes) for kind, by_nodes in drafts.items()}, spread(passes)

    def _pass(self, sequence: Any, nodes: int) -> None:
        """The last token and a tree below it: chains of two."""
        parents = [-1 if node % 2 == 0 else node - 1 for node in range(nodes)]
        self._runner.forward([Segment(sequence, [5], range(5, 5 + nodes), parents, want_last=True)])
        self._runner.cache.commit(sequence, ())


def milliseconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


def spread(taken: dict[int, list[float]]) -> Times:
    """Without the first of each."""
    return {
        nodes: [round(q, 2) for q in statistics.quantiles(values[1:], n=4)] for nodes, values in taken.items()
    }


def with_speed(report: dict[str, Any], drafts: Times, passes: Times) -> dict[str, Any]:
    """Adds the times, and the speed at batch 1 that follows: of tokens per step over what a step takes."""
    speed = {
        nodes: round(length * passes[0][1] / (drafts[nodes][1] + passes[nodes][1]), 2)
        for nodes, length in report["tokens_per_step"].items()
    }
    return report | {"draft_ms": drafts, "speed": speed}


def main(
    kind: Annotated[list[str], typer.Option(help="NAME:MODEL[,layers=N][,weights=W]; several times.")],
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 4,
    new_tokens: Annotated[int, typer.Option(help="Most tokens per prompt.")] = 48,
    nodes: Annotated[str, typer.Option(help="Verified nodes of a tree, with commas between.")] = "4,16",
    rounds: Annotated[int, typer.Option(help="Times that each draft is timed.")] = 20,
    note: Annotated[
        list[str] | None, typer.Option(help="For the report: how a kind was made; several times.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "ssm-kinds",
) -> None:
    """Measure kinds of SSM for the default model."""
    torch.set_num_threads(2)
    kinds, found, budgets = (
        [Kind.read(text) for text in kind],
        load_prompts(prompts, per_source),
        read_numbers("nodes", nodes),
    )
    with console.status("loading") as spinner:
        bench = Bench(kinds, found, new_tokens)
        reports = {}
        for each in kinds:
            spinner.update(each.name)
            reports[each] = bench.quality(each, budgets)
        spinner.update("times")
        drafts, passes = bench.times(budgets, rounds)
    rows = [with_speed(reports[each], drafts[each], passes) for each in kinds]
    report = {"about": about_this_run(), "prompts": len(found), "new_tokens": new_tokens}
    report |= {"notes": note or [], "pass_ms": passes, "kinds": rows}
    publish(out, report, kinds_markdown(report, DEPTH, BEAM))


if __name__ == "__main__":
    typer.run(main)
