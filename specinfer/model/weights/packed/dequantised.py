"""Dequantises the tensors of a checkpoint when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specinfer.errors import IncompatibleError
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.files import TensorSlice, read_part, shape_of
from specinfer.model.weights.interfaces import NamedTensors
from specinfer.model.weights.packed.scheme import Scheme

_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""Position of outputs 0 to 7 in a word of eight numbers."""
_FP8_SCALES = ("weight_scale_inv", "weight_scale")
_OF_ACTIVATIONS = ("input_scale", "activation_scale")
"""Name endings of ignored tensors: activations are not quantised here."""


class DequantisedWeights(NamedTensors):
    """Weights whose quantised matrices are dequantised to float32 on reading."""

    def __init__(self, weights: Mapping[str, torch.Tensor], scheme: Scheme) -> None:
        self._weights, self._scheme = weights, scheme
        groups = {"fp8": self._scaled, "packed": self._packed}.get(scheme.kind, self._grouped)()
        self._parts: dict[str, dict[str, str]] = dict(groups)
        """Quantised matrix -> its tensors: kind -> name in the checkpoint."""
        if not self._parts:
            raise IncompatibleError(
                f"config.json: quantization_config names {scheme.kind}, but no tensor is quantised: remove the field"
            )
        used = {name for parts in self._parts.values() for name in parts.values()}
        if scheme.kind == "fp8":
            used |= {name for name in weights if name.endswith(_OF_ACTIVATIONS)}
        self._names = dict.fromkeys([*(name for name in weights if name not in used), *self._parts])

    def _grouped(self) -> Iterator[tuple[str, dict[str, str]]]:
        for name in self._weights:
            base, _, kind = name.rpartition(".")
            if kind == "qweight":
                parts = {part: f"{base}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx")}
                if parts["g_idx"] not in self._weights and not self._scheme.ordered:
                    del parts["g_idx"]
                yield f"{base}.weight", self._complete(parts)

    def _packed(self) -> Iterator[tuple[str, dict[str, str]]]:
        for name in self._weights:
            base, _, kind = name.rpartition(".")
            if kind in ("weight_zero_point", "weight_g_idx"):
                raise IncompatibleError(f"{name}: packed matrices must be symmetric, in the order of inputs")
            if kind == "weight_packed":
                parts = {part: f"{base}.weight_{part}" for part in ("packed", "scale", "shape")}
                yield f"{base}.weight", self._complete(parts)

    def _scaled(self) -> Iterator[tuple[str, dict[str, str]]]:
        for name in self._weights:
            if not name.endswith(".weight"):
                continue
            base = name.removesuffix("weight")
            scales = [f"{base}{scale}" for scale in _FP8_SCALES if f"{base}{scale}" in self._weights]
            if scales:
                yield name, {"weight": name, "scale": scales[0]}
            elif self._weights[name].dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
                raise IncompatibleError(f"{name} is float8: must have {_FP8_SCALES[0]} or {_FP8_SCALES[1]}")

    def _complete(self, parts: dict[str, str]) -> dict[str, str]:
        if lacking := [name for name in parts.values() if name not in self._weights]:
            raise IncompatibleError(f"the model's weights lack {lacking[0]}, a part of a quantised tensor")
        return parts

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._parts:
            return shape_of(self._weights, name)
        first = shape_of(self._weights, next(iter(self._parts[name].values())))
        per_word = 32 // self._scheme.bits
        match self._scheme.kind:
            case "packed":
                return tuple(self._weights[self._parts[name]["shape"]].long().flatten().tolist())
            case "gptq":
                return first[1], first[0] * per_word
            case "awq":
                return first[1] * per_word, first[0]
        return first

    def part(self, name: str, span: TensorSlice) -> torch.Tensor:
        if name not in self._parts:
            return read_part(self._weights, name, span)
        return self[name].narrow(span.dim, span.start, span.stop - span.start).clone()

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._parts:
            return self._weights[name]
        parts = {part: self._weights[stored] for part, stored in self._parts[name].items()}
        try:
            match self._scheme.kind:
                case "gptq":
                    return _gptq(parts, self._scheme)
                case "awq":
                    return _awq(parts, self._scheme)
                case "packed":
                    return unpacked(parts["packed"], parts["scale"], parts["shape"])
            return _fp8(parts, self._scheme)
        except (RuntimeError, IndexError, ValueError) as error:  # raised for inconsistent shapes
            shapes = ", ".join(f"{part} {list(tensor.shape)}" for part, tensor in parts.items())
            raise IncompatibleError(f"{name}: cannot be dequantised from {shapes}: {error}") from error


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack int32 [A, B] to [A, B, 32 / bits], lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return (words[..., None] >> shifts) & ((1 << bits) - 1)


def _gptq(parts: Mapping[str, torch.Tensor], scheme: Scheme) -> torch.Tensor:
    """Return a matrix [out, in]; words contain adjacent inputs."""
    packed, scales = parts["qweight"], parts["scales"].float()
    weight = _unpacked(packed, scheme.bits).transpose(1, 2).reshape(-1, packed.shape[1])  # [in, out]
    zeros = _unpacked(parts["qzeros"], scheme.bits).flatten(1) + scheme.zero_offset  # [groups, out]
    inputs = len(weight)
    size = inputs if scheme.group == -1 else scheme.group
    groups = parts["g_idx"].long() if "g_idx" in parts else torch.arange(inputs) // size
    _check_groups(len(scales), len(zeros), inputs, size)
    return ((weight - zeros[groups]) * scales[groups]).T.contiguous()


def _awq(parts: Mapping[str, torch.Tensor], scheme: Scheme) -> torch.Tensor:
    """Return a matrix [out, in]; words contain adjacent outputs in AWQ's order."""
    weight = _unpacked(parts["qweight"], 4)[..., _AWQ_ORDER].flatten(1)  # [in, out]
    zeros = _unpacked(parts["qzeros"], 4)[..., _AWQ_ORDER].flatten(1)  # [groups, out]
    scales, inputs = parts["scales"].float(), len(weight)
    size = inputs if scheme.group == -1 else scheme.group
    _check_groups(len(scales), len(zeros), inputs, size)
    groups = torch.arange(inputs) // size
    return ((weight - zeros[groups]) * scales[groups]).T.contiguous()


def unpacked(words: torch.Tensor, scale: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    """Return a matrix [out, in] of a "pack-quantized" checkpoint; `scale` [out, groups]."""
    rows, columns, groups = *shape.long().flatten().tolist(), scale.shape[1]
    bits = 4 if words.shape[1] == -(-columns // 8) else 8
    fits = words.dtype == torch.int32 and words.shape == (rows, -(-columns * bits // 32))
    if not fits or len(scale) != rows or not groups or columns % groups:
        raise IndexError(f"inconsistent with [{rows}, {columns}]")
    values = _unpacked(words, bits).flatten(1)[:, :columns] - (1 << (bits - 1))
    return (values.reshape(*scale.shape, -1) * scale.float()[..., None]).reshape(rows, columns)


def packed(values: torch.Tensor, scale: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a matrix for `unpacked`, by kind.

    Args:
        values: signed integers [out, in] of at most `bits` bits; `32 // bits` divides in.
        scale: [out, groups]
    """
    per_word = 32 // bits
    words = (values.long() + (1 << (bits - 1))).reshape(len(values), -1, per_word)
    words = (words << torch.arange(0, 32, bits)).sum(-1)
    shape = torch.tensor(values.shape)
    return {"packed": words.to(torch.int32), "scale": scale.to(torch.float16), "shape": shape}


def _check_groups(scales: int, zeros: int, inputs: int, size: int) -> None:
    wanted = -(-inputs // size)
    if not scales == zeros == wanted:
        raise IncompatibleError(
            f"group_size = {size}: scales and qzeros must have {wanted} groups, have {scales} and {zeros}"
        )


def _fp8(parts: Mapping[str, torch.Tensor], scheme: Scheme) -> torch.Tensor:
    weight, scale = parts["weight"].float(), parts["scale"].float()
    if scheme.block is None:
        rows = scale.reshape(-1, 1) if scale.dim() < 2 else scale
        if rows.shape not in ((1, 1), (len(weight), 1)):
            raise IncompatibleError(
                f"scales of shape {list(scale.shape)}: must be 1 or {len(weight)}, 1 per row"
            )
        return weight * rows
    height, width = scheme.block
    wanted = (-(-weight.shape[0] // height), -(-weight.shape[1] // width))
    if tuple(scale.shape) != wanted:
        raise IncompatibleError(
            f"scales of shape {list(scale.shape)}: must be {list(wanted)} for blocks of {scheme.block}"
        )
    spread = scale.repeat_interleave(height, 0).repeat_interleave(width, 1)
    return weight * spread[: weight.shape[0], : weight.shape[1]]
