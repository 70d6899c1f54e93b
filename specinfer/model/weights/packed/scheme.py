"""Reads a checkpoint's `quantization_config`, or refuses it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.system.json_files import read_json

_WITHOUT_EFFECT = frozenset(
    {
        *("backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment"),
        *(
            "damp_percent",
            "dataset",
            "desc_act",
            "disable_exllama",
            "do_fuse",
            "exllama_config",
            "fuse_max_seq_len",
        ),
        *("ignore", "ignored_layers", "is_marlin_format", "lm_head", "max_input_length", "meta"),
        *("model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block"),
        *("modules_in_block_to_quantize", "modules_to_fuse", "modules_to_not_convert", "pad_token_id"),
        *(
            "quant_method",
            "static_groups",
            "sym",
            "tokenizer",
            "true_sequential",
            "use_cuda_fp16",
            "use_exllama",
        ),
        *("activation_scheme", "activation_scale_ub", "fmt", "dequantize", "global_compression_ratio"),
        *("quantization_status", "version", "zero_point", "kv_cache_scheme", "config_groups", "format"),
    }
)
"""Keys without effect on arithmetic, or checked by other code."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Quantisation of a checkpoint's matrices."""

    kind: str
    """One of "gptq", "awq", "fp8" and "packed"."""
    bits: int = 8
    group: int = -1
    """Number of inputs that share a scale; -1: all inputs."""
    ordered: bool = False
    """True if `g_idx` assigns inputs to groups (order of activations)."""
    zero_offset: int = 0
    """Number to add to stored zero points."""
    block: tuple[int, int] | None = None
    """(Rows, columns) per scale; None: one scale per row or matrix."""


def read_scheme(directory: Path) -> Scheme | None:
    """Return a model directory's quantisation; None if it is not quantised."""
    path = directory / "config.json"
    config = read_json(path)
    fields = config.get("quantization_config") or config.get("compression_config")
    return scheme_of(fields) if fields else None


def scheme_of(fields: Mapping[str, Any]) -> Scheme:
    method = str(fields.get("quant_method"))
    readers = {
        "gptq": _gptq,
        "awq": _awq,
        "fp8": _fp8,
        "fbgemm_fp8": _fp8,
        "compressed-tensors": _compressed,
    }
    if method not in readers:
        raise _refusal("quant_method", method, f"supported are {', '.join(readers)}")
    scheme, used = readers[method](fields)
    unknown = sorted(name for name in fields if name not in _WITHOUT_EFFECT | used and fields[name])
    if unknown:
        reason = f"unknown field of quant_method {method}; supported are {', '.join(sorted(used))}"
        raise _refusal(unknown[0], fields[unknown[0]], reason)
    return scheme


def _refusal(key: str, value: object, reason: str) -> IncompatibleError:
    return IncompatibleError(f"quantization_config: {key} = {value!r}: {reason}")


def _gptq(fields: Mapping[str, Any]) -> tuple[Scheme, set[str]]:
    bits, layout = fields.get("bits"), fields.get("checkpoint_format") or "gptq"
    if bits not in (4, 8):
        raise _refusal("bits", bits, "4 and 8 are supported for gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise _refusal("checkpoint_format", layout, "gptq and gptq_v2 are supported")
    if fields.get("is_marlin_format"):
        raise _refusal("is_marlin_format", True, "must be False")
    group, ordered = _group(fields, "group_size"), bool(fields.get("desc_act"))
    scheme = Scheme("gptq", bits, group, ordered, zero_offset=int(layout == "gptq"))
    return scheme, {"bits", "group_size", "checkpoint_format"}


def _awq(fields: Mapping[str, Any]) -> tuple[Scheme, set[str]]:
    bits = fields.get("bits", fields.get("w_bit"))
    version = str(fields.get("version", "gemm")).lower()
    if bits != 4:
        raise _refusal("bits", bits, "4 is supported for awq")
    if version != "gemm":
        raise _refusal("version", version, "gemm is supported for awq")
    if not fields.get("zero_point", True):
        raise _refusal("zero_point", False, "must be True for awq")
    group = _group(fields, "group_size" if "group_size" in fields else "q_group_size")
    return Scheme("awq", 4, group), {"bits", "w_bit", "group_size", "q_group_size"}


def _fp8(fields: Mapping[str, Any]) -> tuple[Scheme, set[str]]:
    block = fields.get("weight_block_size")
    if fields.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise _refusal("fmt", fields["fmt"], "e4m3 is supported")
    if block is not None and not (
        len(block) == 2 and all(isinstance(size, int) and size > 0 for size in block)
    ):
        raise _refusal("weight_block_size", block, "must be [rows, columns]")
    return Scheme("fp8", block=None if block is None else (block[0], block[1])), {"weight_block_size"}


_COMPRESSED = {"float-quantized": ("fp8", "float", (8,)), "pack-quantized": ("packed", "int", (4, 8))}
"""Layouts of compressed-tensors: kind, and the supported type and bits of weights."""


def _compressed(fields: Mapping[str, Any]) -> tuple[Scheme, set[str]]:
    layout = fields.get("format")
    if layout not in _COMPRESSED:
        raise _refusal("format", layout, f"{', '.join(_COMPRESSED)} are supported for compressed-tensors")
    kind, number, sizes = _COMPRESSED[layout]
    for name, group in (fields.get("config_groups") or {}).items():
        weights = group.get("weights") or {}
        found = (weights.get("type"), weights.get("num_bits"), weights.get("symmetric", True))
        if found not in [(number, bits, True) for bits in sizes] or (group.get("format") or layout) != layout:
            key = f"config_groups.{name}.weights: (type, num_bits, symmetric)"
            supported = " and ".join(str((number, bits, True)) for bits in sizes)
            raise _refusal(key, found, f"{supported} are supported for {layout}")
        if weights.get("actorder"):
            raise _refusal(f"config_groups.{name}.weights.actorder", weights["actorder"], "must be null")
    if fields.get("kv_cache_scheme"):
        raise _refusal("kv_cache_scheme", fields["kv_cache_scheme"], "must be null: use --kv-type")
    if (
        set(fields.get("sparsity_config") or {}) - {"format"}
        or (fields.get("sparsity_config") or {}).get("format", "dense") != "dense"
    ):
        raise _refusal("sparsity_config", fields["sparsity_config"], "must be absent or dense")
    return Scheme(kind), {"sparsity_config"}


def _group(fields: Mapping[str, Any], key: str) -> int:
    group = fields.get(key)
    if not isinstance(group, int) or (group <= 0 and group != -1):
        raise _refusal(key, group, "must be a number of inputs per group, or -1 for one group")
    return group
