"""Compile every kernel for sm_80 and sm_90 without a GPU; print their resources as JSON lines.

Run in a process of its own: kernels cannot be compiled in a process that interprets them.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specinfer.model.gpu import (
    attention,
    choice,
    choice_kernels,
    growth,
    growth_kernels,
    layer_kernels,
    tree_kernels,
    weights,
)
from specinfer.model.gpu import layer_kernels as compaction

ARCHITECTURES = (80, 90)
_TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Case(NamedTuple):
    """A kernel and the arguments of its launch. Arguments without a type are int32 numbers."""

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, int]
    aligned: tuple[str, ...] = ()
    """Arguments that are multiples of sixteen; pointers always are."""


def attention_cases() -> Iterator[Case]:
    wide = dict.fromkeys(("query", "key", "value", "keys", "values", "out"), "*bf16")
    types = {**wide, "parts": "*fp32", "levels": "*fp32", "scale": "fp32"}
    types |= dict.fromkeys(attention.KERNEL_SECTIONS, "*i32")
    for tile, width, group in ((16, 128, 4), (64, 64, 3), (128, 128, 1)):
        options = attention.launch_options(tile, width, 2)
        constants = {"D": width, "WIDTH": width, "GROUP": group, "TILE": tile, "SPLITS": 8, "BLOCK": 16}
        constants |= {"PRECISION": "tf32", "ALIGNED": 8, "STEP": options.pop("STEP")}
        aligned = ("query_stride", "key_stride", "head_stride")
        yield Case(f"attend-{tile}-{width}", tree_kernels.attend, types, constants, options, aligned)
    parts = {"parts": "*fp32", "levels": "*fp32", "out": "*bf16"}
    yield Case("reduce", tree_kernels.reduce_parts, parts, {"D": 128, "WIDTH": 128, "SPLITS": 32}, {})


def layer_cases() -> Iterator[Case]:
    wide = dict.fromkeys(("x", "change", "weight", "total", "normed", "both", "out"), "*bf16") | {
        "eps": "fp32"
    }
    norm = {"SIZE": 4096, "WIDTH": 4096, "ADDS": True}
    yield Case("add_norm", layer_kernels.add_norm, wide, norm, {})
    wide |= dict.fromkeys(("projected", "cos", "sin", "query_norm", "key_norm"), "*bf16")
    heads = {"HEADS": 32, "KV_HEADS": 8, "D": 128, "HALF": 64, "ROWS": 64, "WIDTH": 64}
    for norms in (False, True):
        yield Case(
            f"turn_heads-{norms}", layer_kernels.turn_heads, wide, heads | {"NORMS": norms}, {}, ("stride",)
        )
    yield Case("gate", layer_kernels.gate, wide, {"BLOCK": 1024}, {})
    product = {"SIZE": 4096, "BIASED": True, "STEP": weights.MAX_STEP, "COLUMNS": weights.COLUMNS}
    for rows, stages in ((weights.MAX_FEW_ROWS, weights.MANY_STAGES), (16, weights.STAGES)):
        options = {"num_warps": 4, "num_stages": stages}
        types = wide | {"bias": "*bf16"}
        yield Case(
            f"multiply-{rows}",
            layer_kernels.multiply,
            types,
            product | {"ROWS": rows},
            options,
            ("stride", "columns"),
        )
    cache = {"keys": "*bf16", "values": "*bf16", "moves": "*i32"}
    moved = {"D": 128, "WIDTH": 128, "MOST": compaction.MAX_MOVED}
    yield Case("move_entries", compaction.move_entries, cache, moved, {}, ("head_stride",))


def choice_cases() -> Iterator[Case]:
    types = dict.fromkeys(("rows", "keys", "left_out", "left_out_start"), "*i64")
    types |= dict.fromkeys(("temperatures", "sums", "times", "found", "p"), "*fp64")
    types |= {"peaks": "*fp32", "tokens": "*i32"}
    yield Case("scan", choice_kernels.scan, types, {"BLOCK": choice.BLOCK}, {"num_warps": 8})
    yield Case("conclude", choice_kernels.conclude, types, {"PARTS": 128, "CHUNK": choice.CHUNK}, {})


def growth_cases() -> Iterator[Case]:
    favoured = dict.fromkeys(("logits", "peaks", "favours"), "*fp32")
    favoured |= {"temperatures": "*fp64", "greedy": "*i32", "keys": "*i64", "vocabulary": "*i32"}
    yield Case("favour", growth_kernels.favour, favoured, {"BLOCK": growth.BLOCK}, {})
    types = dict.fromkeys(("scores", "cell_scores"), "*fp32") | {"ids": "*i64"}
    types |= dict.fromkeys(("least", "paths", "frontier_paths"), "*fp64")
    types |= dict.fromkeys(("vocabulary", "depths", "widths", "tokens", "parents"), "*i32")
    types |= dict.fromkeys(("frontier_cells", "masks", "next_masks", "next_tokens"), "*i32")
    for beam, width in ((4, 64), (16, 256)):
        constants = {"BEAM": beam, "WIDTH": width, "FRONT": beam, "WORDS": 8, "LAST": False}
        options = growth.launch_options(beam * width)
        yield Case(f"extend-{beam}-{width}", growth_kernels.extend, types, constants, options)


def cases() -> Iterator[Case]:
    yield from attention_cases()
    yield from layer_cases()
    yield from choice_cases()
    yield from growth_cases()


def compiled(case: Case, architecture: int) -> dict[str, Any]:
    """Return shared memory, and the registers and stack that cuobjdump reports; spilled registers use the stack."""
    names = case.kernel.arg_names
    signature = {n: "constexpr" if n in case.constants else case.types.get(n, "i32") for n in names}
    hints = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name in case.aligned or signature[name].startswith("*")
    }
    source = ASTSource(case.kernel, signature, dict(case.constants), hints)
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=dict(case.options))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        process = subprocess.run(
            [_TOOL, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    usage = dict(re.findall(r"(REG|STACK):(\d+)", process.stdout))
    return {
        "kernel": case.name,
        "architecture": architecture,
        "shared": made.metadata.shared,
        "registers": int(usage["REG"]),
        "stack": int(usage["STACK"]),
    }


def main() -> None:
    for case in cases():
        for architecture in ARCHITECTURES:
            print(json.dumps(compiled(case, architecture)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
