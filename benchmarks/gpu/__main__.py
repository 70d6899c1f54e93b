"""Command line of `make bench-gpu`; checks for a GPU before heavy imports."""

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

SECONDS = 470.0
"""Time limit of all parts together, in seconds."""
SHOWN = ("numpy", "torch", "triton", "transformers")
NEEDED = (*SHOWN, "annotated_types")
_LOOK_S = 60.0
"""Maximum seconds to look for a GPU."""
_MEMORY, _ROOM = Path("/dev/shm"), 40 * 2**30
"""Folder in memory, and the free bytes that models need there."""


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; return exit code 2 if it cannot run here."""
    if lacking := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        return _refuse(f"not installed: {', '.join(lacking)}; see benchmarks/gpu/__init__.py")
    from benchmarks.gpu.parts import in_child
    from benchmarks.gpu.run import FULL, PARTS, TINY, GpuContext, run
    from benchmarks.gpu.timers import GpuTimer, HostTimer
    from benchmarks.publish import RESULTS
    from benchmarks.tables import origin
    from specinfer.cli.about import about_this_run

    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description="Services and passes on a GPU.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="most time of the whole run")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="parts to run")
    parser.add_argument("--skip", nargs="+", choices=names, default=[], help="parts to leave out")
    parser.add_argument("--tiny", action="store_true", help="sizes for Triton's interpreter; no figures")
    parser.add_argument("--out", type=Path, help="the report, without its suffixes (default: results/gpu)")
    options = parser.parse_args(argv)
    (found,) = in_child(machine, _LOOK_S)  # this process must not use the GPU before it forks
    device = "cuda" if found else "cpu"
    if device == "cpu" and not options.tiny:
        return _refuse("there is no GPU here; --tiny runs the same code in Triton's interpreter")
    if options.tiny and options.out is None:
        return _refuse("--tiny needs --out: its figures do not belong among the results")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # which triton reads when it is imported
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in SHOWN)
    place = found or "no GPU: Triton's interpreter"
    opening = f"{origin(about_this_run('python -m benchmarks.gpu'))}; {place}; {versions}."
    parts = [part for part in PARTS if part.name in options.only and part.name not in options.skip]
    timer, scale = GpuTimer() if found else HostTimer(), TINY if options.tiny else FULL
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
    with tempfile.TemporaryDirectory(dir=_MEMORY if roomy else None) as folder:
        executor = "auto" if found else "gpu"
        context = GpuContext(device, timer, scale, options.seconds, executor, Path(folder))
        return run(context, parts, opening, options.out or RESULTS / "gpu")


def machine() -> Iterator[str]:
    """Yield the GPU's name, processors and memory; empty without a GPU."""
    import torch

    if not torch.cuda.is_available():
        yield ""
        return
    p = torch.cuda.get_device_properties("cuda")
    yield f"{p.name}, {p.multi_processor_count} multiprocessors, {p.total_memory / 2**30:.0f} GiB"


def _refuse(reason: str) -> int:
    print(f"benchmarks.gpu: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
