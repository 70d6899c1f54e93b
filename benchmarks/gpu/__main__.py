"""Command line of `make bench-gpu`; checks for a GPU before heavy imports."""

import argparse
import importlib.metadata
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 470.0
"""Time limit of all sections together, in seconds."""
NEEDED = ("numpy", "torch", "triton", "transformers")
_VERSIONS = (*NEEDED, "flashinfer-python")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description="Kernels, passes and steps on a GPU."
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="most time of the whole run")
    parser.add_argument(
        "--tiny", action="store_true", help="sizes for Triton's interpreter; figures mean nothing"
    )
    parser.add_argument("--out", type=Path, help="the report, without its suffixes (default: results/gpu)")
    return parser.parse_args(argv)


def machine(device: str) -> dict[str, Any]:
    """Return the device's name and the versions of driver and libraries."""
    import torch

    versions = {}
    for name in _VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.device(device).type != "cuda":
        return {"device": "no GPU: Triton's interpreter", "versions": versions}
    properties = torch.cuda.get_device_properties(device)
    described = f"{properties.name}, {properties.multi_processor_count} multiprocessors"
    return {"device": f"{described}, {properties.total_memory / 2**30:.0f} GiB", "versions": versions}


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; return exit code 2 if it cannot run here."""
    options = arguments(argv)
    if lacking := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        return _refuse(f"not installed: {', '.join(lacking)}")
    import torch

    available = torch.cuda.is_available()
    if not available and not options.tiny:
        return _refuse("there is no GPU here; --tiny runs the same code in Triton's interpreter")
    if options.tiny and options.out is None:
        return _refuse("--tiny needs --out: its figures do not belong among the results")
    return _run(options, "cuda" if available else "cpu")


def _run(options: argparse.Namespace, device: str) -> int:
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # which triton reads when it is imported
    import torch

    from benchmarks.gpu.run import SECTIONS, GpuTimer, HostTimer, Run, stopped_after
    from benchmarks.gpu.scale import FULL, TINY, Budget
    from benchmarks.publish import RESULTS
    from specinfer.cli.about import about_this_run

    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", file=sys.stderr, flush=True)

    out = options.out or RESULTS / "gpu"
    report = {"about": about_this_run("python -m benchmarks.gpu"), "machine": machine(device)}
    timer = GpuTimer() if device == "cuda" else HostTimer()
    scale = TINY if options.tiny else FULL
    budget = Budget(options.seconds)
    run = Run(device, timer, scale, budget, report, out, say)
    with stopped_after(options.seconds), torch.inference_mode():
        code = run.all_of(SECTIONS)
    print(out.with_name(f"{out.name}.md").read_text())
    return code


def _refuse(reason: str) -> int:
    print(f"benchmarks.gpu: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
