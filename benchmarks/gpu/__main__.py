"""Command line of `make bench-gpu`; checks for a GPU before heavy imports."""

import argparse
import importlib.metadata
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

SECONDS = 470.0
"""Time limit of all sections together, in seconds."""
NEEDED = ("numpy", "torch", "triton", "transformers")
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; return exit code 2 if it cannot run here."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description="Kernels, passes and steps on a GPU."
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="most time of the whole run")
    parser.add_argument("--tiny", action="store_true", help="sizes for Triton's interpreter; no figures")
    parser.add_argument("--out", type=Path, help="the report, without its suffixes (default: results/gpu)")
    options = parser.parse_args(argv)
    if lacking := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        return _refuse(f"not installed: {', '.join(lacking)}")
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.tiny:
        return _refuse("there is no GPU here; --tiny runs the same code in Triton's interpreter")
    if options.tiny and options.out is None:
        return _refuse("--tiny needs --out: its figures do not belong among the results")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # which triton reads when it is imported
    from benchmarks.gpu.run import FULL, SECTIONS, TINY, GpuContext, run
    from benchmarks.gpu.timers import GpuTimer, HostTimer
    from benchmarks.publish import RESULTS
    from benchmarks.tables import origin
    from specinfer.cli.about import about_this_run

    timer = GpuTimer() if device == "cuda" else HostTimer()
    context = GpuContext(device, timer, TINY if options.tiny else FULL, options.seconds)
    opening = f"{origin(about_this_run('python -m benchmarks.gpu'))}; {machine(device)}."
    with torch.inference_mode():
        return run(context, SECTIONS, opening, options.out or RESULTS / "gpu")


def machine(device: str) -> str:
    """Return the device's name and the versions of libraries."""
    import torch

    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in NEEDED)
    if device != "cuda":
        return f"no GPU: Triton's interpreter; {versions}"
    p = torch.cuda.get_device_properties(device)
    memory = f"{p.total_memory / 2**30:.0f} GiB"
    return f"{p.name}, {p.multi_processor_count} multiprocessors, {memory}; {versions}"


def _refuse(reason: str) -> int:
    print(f"benchmarks.gpu: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
