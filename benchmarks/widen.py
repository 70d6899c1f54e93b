"""Enlarge a model's MLPs without changing the model's output.

    python -m benchmarks.widen MODEL FACTOR

Every MLP gets `factor` times its neurons. It writes MODEL-widened-FACTOR into the cache, a stand-in for a
large target: the cost of a pass grows, the acceptance of drafts stays the same.

The method is Net2WiderNet (Chen et al., ICLR 2016, section 2.3), without its noise.

    y = down(act(gate x) * up x) = sum over neurons i of  down_i * h_i(x)
      = sum over neurons i and copies c = 1..k of  (down_i / k) * h_i(x)

So the rows of gate and up (weights and biases) are repeated k times, and the columns of down are repeated
and divided by k; the bias of down stays. k is a power of two: the division is exact in every floating type
(short of its smallest numbers), and only the order of the sums differs.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import typer
from safetensors import SafetensorError
from safetensors.torch import save_file

from specinfer.errors import IncompatibleError, InvalidInputError
from specinfer.hub.resolve import model_directory, model_name, resolve_model
from specinfer.hub.work_directory import atomic_directory
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.packed import open_checkpoint
from specinfer.system.progress import progress

_SHARD_BYTES = 1 << 30
"""Maximum bytes of weights per file, and in memory at once."""
_INTO = re.compile(r"\.(gate_proj|up_proj|fc1|dense_h_to_4h)\.(weight|bias)$")
"""Tensors with a row per neuron of an MLP."""
_OUT_OF = re.compile(r"\.(down_proj|fc2|dense_4h_to_h)\.weight$")
"""Tensors with one column per neuron."""
_FUSED = ".gate_up_proj."
_NEURONS = ("intermediate_size", "ffn_dim")
Shard = dict[str, torch.Tensor]
Report = Callable[[int, int], None]


_BESIDE = (
    "generation_config.json",
    "chat_template.j*",
    "additional_chat_templates/*.jinja",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens*",
    "added_tokens.json",
)


def widen(model: str, factor: int) -> Path:
    """Write MODEL-widened-FACTOR into the cache and return its directory.

    Raises:
        InvalidInputError: if the factor is invalid or the widened model exists.
        IncompatibleError: if our decoder does not support the family.
    """
    if factor < 2 or factor & (factor - 1):
        raise InvalidInputError("factor", factor, "must be a power of two, 2 or more")
    source, name = resolve_model(model).resolve(), model_name(model)
    target = model_directory(f"{name}-widened-{factor}")
    if target.exists():
        raise InvalidInputError("model", model, f"is widened already: {target}")
    with atomic_directory(target) as work, progress(f"widening {name}") as report:
        widen_model(source, work, factor, name, report)
    return target


def widen_tensor(name: str, tensor: torch.Tensor, factor: int) -> torch.Tensor:
    """Return the tensor of this name in the widened model."""
    if _INTO.search(name):
        return tensor.repeat(factor, *[1] * (tensor.dim() - 1))
    if _OUT_OF.search(name):
        return (tensor / factor).repeat(1, factor)
    return tensor


def widen_config(config: Mapping[str, Any], factor: int, original: str) -> dict[str, Any]:
    """Return `config.json` with a mark that names the original."""
    wider = {key: config[key] * factor for key in _NEURONS if key in config}
    return {**config, **wider, "dtype": "bfloat16", "widened": {"original": original, "factor": factor}}


def widen_model(source: Path, directory: Path, factor: int, original: str, report: Report) -> None:
    """Write the widened model of `source` into an empty directory, in bfloat16.

    Args:
        factor: a power of two.
        original: name of the model in `source`.
        report: called with the numbers of finished and of all tensors.

    Raises:
        IncompatibleError: if our decoder does not support the family, or the model is widened already.
        OSError: if the result cannot be written.
    """
    load_config(source)  # MLPs of other families have other names
    config = json.loads((source / "config.json").read_text())
    if "widened" in config:
        raise IncompatibleError(
            f"{original} is a widened model: widen {config['widened']['original']} instead"
        )
    weights = open_checkpoint(source)
    if fused := next((name for name in weights if _FUSED in name), None):
        raise IncompatibleError(f"{fused} joins gate and up in one matrix: only separate ones can be widened")
    _write_shards(weights, directory, factor, report)
    (directory / "config.json").write_text(
        json.dumps(widen_config(config, factor, original), indent=2) + "\n"
    )
    copy_beside(source, directory)


def _write_shards(weights: Mapping[str, torch.Tensor], directory: Path, factor: int, report: Report) -> None:
    index: dict[str, str] = {}
    for number, shard in enumerate(_shards(weights, factor, report)):
        file = f"model-{number:05d}.safetensors"
        try:
            save_file(shard, directory / file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from error
        index |= dict.fromkeys(shard, file)
    text = json.dumps({"metadata": {}, "weight_map": index}, indent=2)
    (directory / "model.safetensors.index.json").write_text(text + "\n")


def _shards(weights: Mapping[str, torch.Tensor], factor: int, report: Report) -> Iterator[Shard]:
    """Yield the widened tensors in files of about `_SHARD_BYTES`."""
    shard: Shard = {}
    for done, name in enumerate(weights):
        report(done, len(weights))
        shard[name] = widen_tensor(name, weights[name].to(torch.bfloat16), factor).contiguous()
        if sum(tensor.nbytes for tensor in shard.values()) >= _SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard
    report(len(weights), len(weights))


def copy_beside(source: Path, directory: Path) -> None:
    """Copy tokenizer and other files of a model, not config and weights."""
    for pattern in _BESIDE:
        for path in source.glob(pattern):
            target = directory / path.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)


if __name__ == "__main__":
    typer.run(widen)
