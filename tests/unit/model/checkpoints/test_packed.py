"""Quantised checkpoints (GPTQ, AWQ, FP8) give the logits of their dequantised weights, or are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specinfer.errors import IncompatibleError
from specinfer.model.batch import Segment
from specinfer.model.loading import load_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.weights.draft_checkpoint import embedding_fingerprint
from specinfer.model.weights.files import SafetensorsWeights
from specinfer.model.weights.packed import open_checkpoint
from specinfer.model.weights.packed.dequantised import DequantisedWeights
from specinfer.model.weights.packed.scheme import scheme_of
from tests.support.tiny_models import reference_logits, tiny_transformers

PROMPT = [3, 14, 15, 92, 65]
OPTIONS = RunnerOptions(dtype="float32", kv_tokens=256)
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
Tensors = dict[str, torch.Tensor]


def nibbles_in_words(values: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Pack numbers of four bits [A, 8 B] into words [A, B]; position k of a word has number order[k]."""
    groups = values.view(len(values), -1, 8)
    words = sum(groups[..., number].long() << (4 * place) for place, number in enumerate(order))
    assert isinstance(words, torch.Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def grouped(weight: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise a matrix [out, in] to numbers of four bits [in, out], with zeros and scales [groups, out]."""
    inputs, count = weight.T, int(groups.max()) + 1
    low = torch.stack([inputs[groups == g].amin(0) for g in range(count)])
    high = torch.stack([inputs[groups == g].amax(0) for g in range(count)])
    scales = ((high - low) / 15).half().float().clamp(min=1e-4)
    zeros = (-low / scales).round().clamp(1, 15)
    return (inputs / scales[groups] + zeros[groups]).round().clamp(0, 15).int(), zeros.int(), scales


def as_gptq(name: str, weight: torch.Tensor, act_order: bool) -> tuple[Tensors, torch.Tensor]:
    """Return GPTQ's tensors of a matrix, and the dequantised matrix."""
    base, groups = name.removesuffix("weight"), torch.arange(weight.shape[1]) // 32
    if act_order:
        groups = groups[torch.randperm(len(groups))]
    numbers, zeros, scales = grouped(weight, groups)
    in_order = list(range(8))
    tensors = {
        f"{base}qweight": nibbles_in_words(numbers.T.contiguous(), in_order).T.contiguous(),
        f"{base}qzeros": nibbles_in_words(zeros - 1, in_order),
        f"{base}scales": scales.half(),
        f"{base}g_idx": groups.int(),
    }
    return tensors, ((numbers - zeros[groups]) * scales[groups]).T.contiguous()


def as_awq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    base, groups = name.removesuffix("weight"), torch.arange(weight.shape[1]) // 32
    numbers, zeros, scales = grouped(weight, groups)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    tensors = {
        f"{base}qweight": nibbles_in_words(numbers, order),
        f"{base}qzeros": nibbles_in_words(zeros, order),
        f"{base}scales": scales.half(),
    }
    return tensors, ((numbers - zeros[groups]) * scales[groups]).T.contiguous()


def as_fp8(name: str, weight: torch.Tensor, scale_name: str, block: bool) -> tuple[Tensors, torch.Tensor]:
    if block:
        height, width = (-(-size // 32) for size in weight.shape)
        scale = torch.rand(height, width) + 0.5
        spread = scale.repeat_interleave(32, 0).repeat_interleave(32, 1)[: weight.shape[0], : weight.shape[1]]
    else:
        scale = weight.abs().amax(1, keepdim=True) / 448
        spread = scale
    stored = (weight / spread).to(torch.float8_e4m3fn)
    base = name.removesuffix("weight")
    return {name: stored, f"{base}{scale_name}": scale}, stored.float() * spread


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def as_fp8_whole(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Return FP8 tensors with one scale for the matrix, and the dequantised matrix."""
    scale = weight.abs().max().reshape(1) / 448
    stored = (weight / scale).to(torch.float8_e4m3fn)
    return {
        name: stored,
        f"{name}_scale": scale,
        f"{name.removesuffix('weight')}input_scale": scale.clone(),
    }, stored.float() * scale


def as_packed(name: str, weight: torch.Tensor, bits: int, group: int) -> tuple[Tensors, torch.Tensor]:
    """Return the tensors of `compressed-tensors`, with a scale for each group of inputs."""
    grouped_inputs = weight.reshape(len(weight), -1, group)
    scale = (grouped_inputs.abs().amax(-1) / (2 ** (bits - 1) - 1)).half()
    numbers = (grouped_inputs / scale[..., None]).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    places = torch.arange(0, 32, bits)
    words = (numbers.reshape(len(weight), -1, 32 // bits).long() + 2 ** (bits - 1) << places).sum(-1)
    packed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    tensors = {
        f"{name}_packed": packed,
        f"{name}_scale": scale,
        f"{name}_shape": torch.tensor(weight.shape),
    }
    return tensors, (numbers * scale[..., None]).reshape(weight.shape)


PACKED = {"type": "int", "num_bits": 4, "symmetric": True}


def packed_config(bits: int, group: int) -> dict[str, Any]:
    weights = {"type": "int", "num_bits": bits, "symmetric": True, "strategy": "group", "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gptq": (lambda n, w: as_gptq(n, w, act_order=False), GPTQ),
    "gptq, order of activations": (lambda n, w: as_gptq(n, w, act_order=True), GPTQ),
    "awq": (as_awq, AWQ),
    "fp8, matrices": (as_fp8_whole, FP8),
    "fp8, rows": (lambda n, w: as_fp8(n, w, "weight_scale", block=False), FP8),
    "fp8, blocks": (
        lambda n, w: as_fp8(n, w, "weight_scale_inv", block=True),
        FP8 | {"weight_block_size": [32, 32]},
    ),
    "compressed-tensors, 4 bits": (lambda n, w: as_packed(n, w, 4, 32), packed_config(4, 32)),
    "compressed-tensors, 8 bits, rows": (
        lambda n, w: as_packed(n, w, 8, w.shape[1]),
        packed_config(8, -1),
    ),
}


def quantised(kind: str, directory: Path, **changes: Any) -> tuple[Any, Tensors]:
    """Write a checkpoint of this kind; return a model with the dequantised weights, and the tensors."""
    torch.manual_seed(0)
    model = tiny_transformers("llama-untied", **SHAPE)
    quantise, config = KINDS[kind]
    tensors: Tensors = {}
    for name, parameter in model.named_parameters():
        if "_proj." in name:
            parts, meaning = quantise(name, parameter.detach())
            parameter.data = meaning
            tensors |= parts
        else:
            tensors[name] = parameter.detach()
    (directory / "config.json").write_text(
        json.dumps(model.config.to_dict() | {"quantization_config": config | changes})
    )
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors"
    )
    return model, tensors


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_checkpoint_gives_the_logits_of_its_dequantised_weights(
    kind: str, tmp_path: Path
) -> None:
    model, _ = quantised(kind, tmp_path)
    runner = load_checked(tmp_path, OPTIONS)
    (logits,) = runner.forward([Segment(runner.open(), PROMPT, want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, PROMPT)[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_is_missing_or_of_another_size_is_refused(kind: str, tmp_path: Path) -> None:
    _, tensors = quantised(kind, tmp_path)
    parts = [
        name
        for name in tensors
        if "layers.1.mlp.up_proj" in name and "g_idx" not in name and "input_scale" not in name
    ]
    for name in parts:
        for other in ({}, {name: tensors[name][:-1]}):
            rest = {key: tensor.contiguous() for key, tensor in tensors.items() if key != name}
            save_file(
                rest | {key: tensor.contiguous() for key, tensor in other.items()},
                tmp_path / "model.safetensors",
            )
            with pytest.raises(IncompatibleError, match=r"up_proj|group_size|scales of shape"):
                load_model(tmp_path, OPTIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_is_dequantised_on_its_device(kind: str, tmp_path: Path) -> None:
    """As on a GPU: torch refuses operations between the device meta and a CPU."""
    model, tensors = quantised(kind, tmp_path)
    moved = {name: tensor if "shape" in name else tensor.to("meta") for name, tensor in tensors.items()}
    weights = DequantisedWeights(moved, scheme_of(KINDS[kind][1]))
    for name, tensor in model.state_dict().items():
        if "_proj." in name:
            assert (weights[name].device.type, weights[name].shape) == ("meta", tensor.shape)


def test_the_fingerprint_of_a_target_reads_only_some_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = quantised("compressed-tensors, 4 bits", tmp_path)
    weights = open_checkpoint(tmp_path)
    monkeypatch.setattr(SafetensorsWeights, "__getitem__", None)
    assert embedding_fingerprint(weights) == embedding_fingerprint(dict(model.state_dict()))


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("shape", torch.tensor(4)),
        ("shape", torch.tensor([128.0, 63.0])),
        ("shape", torch.tensor([128, 64, 1])),
        ("scale", torch.ones(128, 0)),
        ("scale", torch.ones(128)),
        ("packed", torch.zeros(128, 8, dtype=torch.uint8)),
    ],
)
def test_malformed_parts_of_packed_matrices_are_refused(
    part: str, other: torch.Tensor, tmp_path: Path
) -> None:
    _, tensors = quantised("compressed-tensors, 4 bits", tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file(tensors | {f"{name}_{part}": other}, tmp_path / "model.safetensors")
    with pytest.raises(IncompatibleError, match="up_proj"):
        load_model(tmp_path, OPTIONS)
    with pytest.raises(IncompatibleError, match=f"{name}: cannot be dequantised from packed"):
        open_checkpoint(tmp_path)[name]


def test_a_group_of_compressed_tensors_has_the_format_of_the_checkpoint_by_default() -> None:
    groups = {"group_0": {"weights": PACKED, "format": None}}
    assert scheme_of(packed_config(4, 32) | {"config_groups": groups}).kind == "packed"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method = 'bitsandbytes'"),
        (GPTQ | {"bits": 3}, "bits = 3"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
        (
            GPTQ | {"dynamic": {"-:.*": {}}},
            "dynamic = .*: unknown field of quant_method gptq; supported are bits, ",
        ),
        (GPTQ | {"group_size": "all"}, "group_size = 'all'"),
        (AWQ | {"version": "gemv"}, "version = 'gemv'"),
        (AWQ | {"zero_point": False}, "zero_point = False"),
        (FP8 | {"fmt": "e5m2"}, "fmt = 'e5m2'"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "format = 'int-quantized'"),
        (packed_config(2, 32), r"config_groups\.group_0\.weights: .* = \('int', 2, True\)"),
        (
            packed_config(4, 32) | {"config_groups": {"a": {"weights": PACKED | {"actorder": "group"}}}},
            r"config_groups\.a\.weights\.actorder = 'group'",
        ),
    ],
)
def test_unsupported_schemes_are_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(IncompatibleError, match=f"quantization_config: {reason}"):
        scheme_of(config)


def test_float8_without_scales_is_refused(tmp_path: Path) -> None:
    _, tensors = quantised("fp8, rows", tmp_path)
    save_file({n: t for n, t in tensors.items() if not n.endswith("scale")}, tmp_path / "model.safetensors")
    with pytest.raises(IncompatibleError, match="weight_scale_inv"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_without_the_declared_quantisation_is_refused(kind: str, tmp_path: Path) -> None:
    plain = tiny_transformers("llama-untied", **SHAPE)
    quantised(kind, tmp_path)
    save_file(dict(plain.state_dict()), tmp_path / "model.safetensors")
    with pytest.raises(IncompatibleError, match="quantization_config"):
        load_model(tmp_path, OPTIONS)


def test_a_missing_order_of_activations_is_refused(tmp_path: Path) -> None:
    _, tensors = quantised("gptq, order of activations", tmp_path)
    rest = {name: tensor.contiguous() for name, tensor in tensors.items() if not name.endswith("g_idx")}
    save_file(rest, tmp_path / "model.safetensors")
    with pytest.raises(IncompatibleError, match=r"lack .*g_idx"):
        load_model(tmp_path, OPTIONS)


def test_a_quantised_checkpoint_of_another_family_is_refused(tmp_path: Path) -> None:
    from tests.support.models.families import save_random

    save_random("cohere", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": GPTQ}))
    with pytest.raises(IncompatibleError, match="quant_method = 'gptq':"):
        load_model(tmp_path, OPTIONS)
