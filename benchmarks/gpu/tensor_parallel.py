"""Plain steps through the services with the target on one rank and on two."""

import asyncio
import tempfile
from pathlib import Path

from benchmarks.gpu.section import Rows, SectionContext, give_back_memory
from benchmarks.gpu.services import measure_steps, roomy_directory
from benchmarks.gpu.shapes import RandomWeights, write_model
from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.model.options import DTYPES
from specinfer.v1 import generation_pb2

RANKS = (1, 2)
_PLAIN = {"plain": generation_pb2.SPECULATION_OFF}


def measure_tensor_parallel(context: SectionContext, rows: Rows) -> None:
    """Per number of ranks and batch: seconds of a step. Ranks share a model in the torch executor only."""
    scale, shape = context.scale, context.scale.shapes[0]
    give_back_memory(context.device)
    size = RandomWeights(shape, DTYPES[scale.dtype], context.device).pass_bytes
    with tempfile.TemporaryDirectory(prefix="specinfer-gpu-", dir=roomy_directory(size)) as folder:
        target = write_model(Path(folder) / "target", shape, scale.dtype, context.device, scale.positions)
        for ranks in RANKS:
            if context.budget.left <= 0:
                return
            context.say(f"tensor parallel: starting {ranks} ranks")
            with LocalSystem(_options(context, target, ranks)) as system:
                found: Rows = []
                asyncio.run(measure_steps(system.address, context, found.append, _PLAIN))
                rows.extend(row | {"ranks": ranks, "executor": "torch"} for row in found)


def _options(context: SectionContext, target: Path, ranks: int) -> LocalOptions:
    scale = context.scale
    verifier = {"device": context.device, "executor": "torch", "tensor-parallel": str(ranks)}
    return LocalOptions(
        model=str(target),
        dtype=scale.dtype,
        verifier={
            **verifier,
            "kv-tokens": str(2 * max(scale.batches) * (scale.context + 2 * scale.new_tokens)),
        },
        gateway={"max-batch": str(max(scale.batches))},
        speculators={},
    )
