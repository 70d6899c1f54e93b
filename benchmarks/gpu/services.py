"""Steps through the real services with synthetic acceptance: gateway, wire, verifier, a speculator, Redis."""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.engine import HISTOGRAM, pass_seconds, share_beside, tree_nodes
from benchmarks.gpu.section import Rows, SectionContext, give_back_memory
from benchmarks.gpu.shapes import RandomWeights, write_model
from benchmarks.load import Load, generate_all
from benchmarks.synthetic.histogram import AcceptanceHistogram, mark, measured
from benchmarks.synthetic.rule import HISTOGRAM_VARIABLE
from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.client import AsyncClient
from specinfer.drafters.pools import Flags
from specinfer.model.options import DTYPES
from specinfer.v1 import generation_pb2

MODES = {"plain": generation_pb2.SPECULATION_OFF, "tree": generation_pb2.SPECULATION_TREE}
_DEPTH = 8
_SPARE = 2
"""Times the target's weights that must be free: its embeddings, the drafter and everybody else's."""


class SyntheticSystem(LocalSystem):
    """A local system whose verifier draws how much it accepts."""

    def __init__(self, options: LocalOptions, histogram: AcceptanceHistogram) -> None:
        super().__init__(options)
        self._histogram = histogram

    def program(self, module: str) -> tuple[list[str], Mapping[str, str]]:
        """Implement `LocalSystem.program`."""
        if module != "verifier_svc":
            return super().program(module)
        command = [sys.executable, "-m", "benchmarks.synthetic.verifier"]
        return command, {HISTOGRAM_VARIABLE: self._histogram.name}


def measure_services(context: SectionContext, rows: Rows) -> None:
    """Per mode and batch: seconds of a step by phase, and the share beside the device's pass."""
    scale, histogram = context.scale, measured(HISTOGRAM)
    give_back_memory(context.device)
    size = RandomWeights(scale.shapes[0], DTYPES[scale.dtype], context.device).pass_bytes
    with tempfile.TemporaryDirectory(prefix="specinfer-gpu-", dir=roomy_directory(size)) as folder:
        context.say("services: writing random models")
        target = write_model(
            Path(folder) / "target", scale.shapes[0], scale.dtype, context.device, scale.positions
        )
        drafter = write_model(
            Path(folder) / "drafter", scale.drafter, scale.dtype, context.device, scale.positions
        )
        context.say("services: starting")
        with SyntheticSystem(_options(context, target, drafter), histogram) as system:
            marked = {"synthetic_acceptance": mark(histogram)}
            asyncio.run(measure_steps(system.address, context, lambda row: rows.append(row | marked)))


def executor(device: str) -> str:
    """Return the executor of the services' models: without a GPU the interpreter would take a second a pass."""
    return "gpu" if device.startswith("cuda") else "torch"


def roomy_directory(size: int) -> str | None:
    """A directory in memory if there is one with room for so many bytes; None is the usual one."""
    in_memory = Path("/dev/shm")
    roomy = in_memory.is_dir() and shutil.disk_usage(in_memory).free > _SPARE * size
    return str(in_memory) if roomy else None


def _options(context: SectionContext, target: Path, drafter: Path) -> LocalOptions:
    nodes, scale = tree_nodes(context) - 1, context.scale
    where: Flags = {"device": context.device}
    speculator = {
        "drafter": "ssm",
        "model": str(drafter),
        "depth": str(_DEPTH),
        "min-path-probability": "0",
        "weights": "auto",
        **where,
    }
    gateway = {
        "max-batch": str(max(scale.batches)),
        "tree-nodes": str(nodes),
        "adaptive": "false",
        "draft-deadline-ms": "10000",
    }
    return LocalOptions(
        model=str(target),
        dtype=scale.dtype,
        verifier={
            **where,
            "executor": executor(context.device),
            "kv-tokens": str(2 * max(scale.batches) * (scale.context + 2 * scale.new_tokens)),
        },
        gateway=gateway,
        speculators={"ssm": speculator},
    )


async def measure_steps(
    address: str,
    context: SectionContext,
    keep: Callable[[dict[str, Any]], None],
    modes: Mapping[str, Any] = MODES,
) -> None:
    """Tells `keep` the figures of each mode and batch as soon as they stand."""
    scale, rng = context.scale, np.random.default_rng(0)
    client = AsyncClient(address)
    try:
        for batch in scale.batches:
            prompts = [rng.integers(1, 90, scale.context).tolist() for _ in range(batch)]
            for mode, speculation in modes.items():
                if context.budget.left <= 0:
                    return
                context.say(f"services: {mode}, batch {batch}")
                load = Load(batch, speculation, scale.new_tokens)
                await generate_all(client, prompts, load)
                keep(await _steps(client, prompts, load, mode, context))
    finally:
        await client.close()


async def _steps(
    client: AsyncClient, prompts: list[list[int]], load: Load, mode: str, context: SectionContext
) -> dict[str, Any]:
    """The second run of the same prompts: they are in the cache then, so that nearly every step decodes."""
    before = await client.status()
    answers = await generate_all(client, prompts, load)
    after = await client.status()
    steps = after.steps - before.steps
    then = {phase.name: phase.seconds for phase in before.phases}
    phases = {phase.name: (phase.seconds - then.get(phase.name, 0.0)) / steps for phase in after.phases}
    stats = [answer.summary.stats for answer in answers]
    shape, nodes = context.scale.shapes[0].name, 1 if mode == "plain" else tree_nodes(context)
    device_s, step_s = pass_seconds(context, shape, load.batch, nodes), sum(phases.values())
    return {
        "mode": mode,
        "shape": shape,
        "executor": executor(context.device),
        "batch": load.batch,
        "step_s": step_s,
        "phases_s": phases,
        "tokens_per_step": 1 + sum(s.accepted for s in stats) / sum(s.steps for s in stats),
        "drafted_per_step": sum(s.drafted for s in stats) / sum(s.steps for s in stats),
        "tokens_per_s": load.batch / sum(a.tpot_s for a in answers) * len(answers),
        "device_s": device_s,
        "beside_device": share_beside(device_s, step_s - phases.get("draft", 0.0)),
    }


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
            with LocalSystem(_parallel_options(context, target, ranks)) as system:
                found: Rows = []
                asyncio.run(measure_steps(system.address, context, found.append, _PLAIN))
                rows.extend(row | {"ranks": ranks, "executor": "torch"} for row in found)


def _parallel_options(context: SectionContext, target: Path, ranks: int) -> LocalOptions:
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
