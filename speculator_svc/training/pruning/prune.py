"""`specinfer train prune`: a smaller model of the parts of the target that matter most."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from specinfer.errors import SettingError, UnavailableError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.hub.atomic_directory import atomic_directory
from specinfer.model.torch.surgery import Surgery
from specinfer.model.torch.transformer import Transformer
from specinfer.model.weights.config import ModelConfig, load_config
from specinfer.model.weights.packed import open_checkpoint
from specinfer.model.weights.prune import (
    LayerCut,
    check_prunable,
    is_pruned,
    pruned_config,
    pruned_tensors,
    save_pruned,
    whole_layers,
)
from speculator_svc.training.corpus import read_corpora
from speculator_svc.training.distil import console, progress_bar
from speculator_svc.training.pruning.effects import (
    AblatedModel,
    Continuations,
    PredictionComparison,
    Removal,
    Whole,
    measurements,
    part_effects,
    remove_layers,
)
from speculator_svc.training.run import (
    Corpora,
    Device,
    InterruptionError,
    Target,
    Threads,
    bfloat16_is_fast,
    place_for,
)

Tensors = Mapping[str, torch.Tensor]


class Size(NamedTuple):
    """Parts that stay."""

    layers: int
    kv_heads: int
    neurons: int

    @classmethod
    def checked(cls, config: ModelConfig, layers: int, kv_heads: int, neurons: int) -> "Size":
        """Check options, of which 0 means all parts of this model.

        Raises:
            SettingError: if it does not have so many, or if nothing would go.
        """
        whole = cls(config.layers, config.kv_heads, config.intermediate_size)
        asked = {"layers": layers, "kv_heads": kv_heads, "neurons": neurons}
        for (name, count), most in zip(asked.items(), whole, strict=True):
            if not 0 <= count <= most:
                raise SettingError(name, count, f"the model has {most}")
        size = cls(*(count or most for count, most in zip(asked.values(), whole, strict=True)))
        if size == whole:
            raise SettingError(
                "layers", layers, "nothing is to go: say how many layers, heads or neurons stay"
            )
        return size


class Pruned(NamedTuple):
    """Remaining parts of a model."""

    config: ModelConfig
    tensors: dict[str, torch.Tensor]
    cuts: list[LayerCut]
    removed: list[Removal]
    """Removed layers, in the order of their removal."""
    verdict: PredictionComparison
    """Comparison of the remaining model with the whole one."""


class Pruning:
    """A model, and the text on which effects are measured."""

    def __init__(self, weights: Tensors, config: ModelConfig, text: Continuations, device: str) -> None:
        self._weights, self._config, self._text, self._device = weights, config, text, device

    @torch.inference_mode()
    def run(self, size: Size) -> Pruned:
        """Measure and cut, with a progress bar."""
        reader = AblatedModel(self._make(self._weights, self._config), self._text)
        whole = Whole(reader.logits(reader.start, range(reader.layers)))
        removed = self._layers(reader, whole, size.layers)
        gone = {removal.layer for removal in removed}
        cuts = whole_layers(self._config, [n for n in range(self._config.layers) if n not in gone])
        cuts = self._parts(cuts, size)
        tensors, config = self._cut(cuts)
        reader = AblatedModel(self._make(tensors, config), self._text)
        verdict = whole.compare(reader.logits(reader.start, range(reader.layers)))
        return Pruned(config, tensors, cuts, removed, verdict)

    def _layers(self, reader: AblatedModel, whole: Whole, keep: int) -> list[Removal]:
        removed: list[Removal] = []
        if keep == reader.layers:
            return removed
        with progress_bar() as bar:
            task = bar.add_task("measuring layers", total=measurements(reader.layers, keep))
            for removal in remove_layers(reader, whole, keep, lambda: bar.advance(task)):
                removed.append(removal)
                left = reader.layers - len(removed)
                told = f"{left} layers left, KL {removal.verdict.divergence:.3f} without {removal.layer}"
                bar.update(task, description=told)
        return removed

    def _parts(self, cuts: list[LayerCut], size: Size) -> list[LayerCut]:
        """Return the cuts without the heads and neurons that add least to their layers."""
        if (size.kv_heads, size.neurons) == (self._config.kv_heads, self._config.intermediate_size):
            return cuts
        tensors, config = self._cut(cuts)
        effects = part_effects(tensors, self._text, lambda watch: self._make(tensors, config, watch))
        return [
            replace(cut, kv_heads=_most(e.kv_heads, size.kv_heads), neurons=_most(e.neurons, size.neurons))
            for cut, e in zip(cuts, effects, strict=True)
        ]

    def _cut(self, cuts: list[LayerCut]) -> tuple[dict[str, torch.Tensor], ModelConfig]:
        return pruned_tensors(self._weights, self._config, cuts), pruned_config(self._config, cuts)

    def _make(self, weights: Tensors, config: ModelConfig, watch: Surgery | None = None) -> Transformer:
        dtype = torch.bfloat16 if bfloat16_is_fast(torch.device(self._device)) else torch.float32
        return Transformer(config, weights, dtype, self._device, watch)


def _most(effects: torch.Tensor, count: int) -> tuple[int, ...]:
    """Return the places of the largest values, ascending."""
    return tuple(sorted(effects.topk(count).indices.tolist()))


def prune(
    corpus: Corpora,
    out: Annotated[Path, typer.Option(help="Directory of the pruned model.")],
    model: Target = DEFAULT_MODEL,
    layers: Annotated[int, typer.Option(help="Layers that stay; 0: all.")] = 0,
    kv_heads: Annotated[
        int, typer.Option(help="Key-value heads of a layer that stay, with their query heads; 0: all.")
    ] = 0,
    neurons: Annotated[
        int, typer.Option(help="Neurons of an MLP that stay; 0: all. Multiples of 32 can be quantised.")
    ] = 0,
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the corpus on which effects are measured.")
    ] = 1024,
    threads: Threads = 0,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a pruned model in --out.")] = False,
) -> None:
    """Cut the target down to the parts with the most measured effect: a model that drafts for it.

    Layers go one by one, each time the one without which the target's predictions change least; then heads
    and neurons that add least to their layers. Nothing is trained: `specinfer train ssm --start` goes on.
    """
    _check_out(out, overwrite)
    place, directory = place_for(device, threads), resolve_model(model)
    config = load_config(directory)
    check_prunable(config)
    size = Size.checked(config, layers, kv_heads, neurons)
    text = Continuations.of([item for part in read_corpora(corpus)[0] for item in part], tokens)
    if not len(text.rows):
        raise SettingError("corpus", str(corpus[0]), "has no continuation of a short prompt")
    with _result(out) as work:  # before the measuring, which takes minutes
        try:
            pruned = Pruning(open_checkpoint(directory), config, text, place).run(size)
        except KeyboardInterrupt as error:
            raise InterruptionError("nothing was written") from error
        verdict, kept = pruned.verdict, ", ".join(str(cut.layer) for cut in pruned.cuts)
        console.print(
            f"of {len(text.rows)} tokens {100 * verdict.agreement:.1f} % are the target's first choice, "
            f"KL {verdict.divergence:.3f}; layers {kept}"
        )
        record = _record(model, size, len(text.rows), pruned)
        save_pruned(directory, work, pruned.tensors, pruned.config, pruned.cuts, record)
    console.print(f"saved {out}")


def _check_out(out: Path, overwrite: bool) -> None:
    """Check that only a pruned model is replaced, and only with `overwrite`."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_pruned(out):
        raise SettingError("out", str(out), "holds something that is no pruned model")
    if not overwrite:
        raise SettingError("out", str(out), "holds a pruned model; --overwrite replaces it")


def _record(model: str, size: Size, tokens: int, pruned: Pruned) -> dict[str, Any]:
    """Return the record of the cut for `config.json`."""
    return {
        "original": Path(model).name,
        "layers": [cut.layer for cut in pruned.cuts],
        "removed": [
            {"layer": removal.layer, "kl": round(removal.verdict.divergence, 4)} for removal in pruned.removed
        ],
        "kv_heads": size.kv_heads,
        "neurons": size.neurons,
        "tokens": tokens,
        "kl": round(pruned.verdict.divergence, 4),
        "agreement": round(pruned.verdict.agreement, 4),
    }


@contextmanager
def _result(out: Path) -> Iterator[Path]:
    """Yield a directory to fill, which then takes the place of `out`.

    Raises:
        UnavailableError: if it cannot be written.
    """
    try:
        with atomic_directory(out) as work:
            yield work
            if is_pruned(out):
                shutil.rmtree(out)
    except OSError as error:
        raise UnavailableError(f"cannot store {out}: {error.strerror or error}") from error
