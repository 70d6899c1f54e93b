"""`specinfer train prune`: a smaller model of the parts of the target that matter most."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from specinfer.errors import SettingError, UnavailableError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.hub.atomic_directory import atomic_directory
from specinfer.model.weights.config import load_config
from specinfer.model.weights.files import SafetensorsWeights
from specinfer.model.weights.prune import check_prunable, is_pruned, save_pruned
from speculator_svc.training.corpus import read_corpora
from speculator_svc.training.device import Device, place_for
from speculator_svc.training.effects import Text
from speculator_svc.training.interruption import InterruptionError
from speculator_svc.training.options import Corpora, Target, Threads
from speculator_svc.training.progress import console
from speculator_svc.training.pruning import Pruned, Pruning, Size


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
    text = Text.of([item for part in read_corpora(corpus)[0] for item in part], tokens)
    if not len(text.rows):
        raise SettingError("corpus", str(corpus[0]), "has no continuation of a short prompt")
    with _result(out) as work:  # before the measuring, which takes minutes
        try:
            pruned = Pruning(SafetensorsWeights(directory), config, text, place).run(size)
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
    """Only a pruned model is replaced, and only if that is asked for."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_pruned(out):
        raise SettingError("out", str(out), "holds something that is no pruned model")
    if not overwrite:
        raise SettingError("out", str(out), "holds a pruned model; --overwrite replaces it")


def _record(model: str, size: Size, tokens: int, pruned: Pruned) -> dict[str, Any]:
    """What `config.json` tells of the cut."""
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
    """A directory to fill, which then takes the place of `out`.

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
