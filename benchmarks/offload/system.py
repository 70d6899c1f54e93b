"""A local system whose verifier reads its layers at a stated bandwidth."""

import os
from collections.abc import Mapping

from benchmarks.offload.throttled_verifier import BANDWIDTH
from specinfer.cli.local.system import NO_METRICS, LocalOptions, LocalSystem
from specinfer.drafters.pools import Flags, default_speculators

_MODULE = "benchmarks.offload.throttled_verifier"


class OffloadedSystem(LocalSystem):
    """As `LocalSystem`; 0 bytes per second: as fast as the disk is."""

    def __init__(self, options: LocalOptions, bytes_per_second: float) -> None:
        super().__init__(options)
        self._bytes_per_second = bytes_per_second

    def _spawn(self, name: str, module: str, flags: Flags) -> None:
        if module == "verifier_svc" and self._bytes_per_second:
            os.environ[BANDWIDTH] = str(self._bytes_per_second)
            NO_METRICS.setdefault(_MODULE, NO_METRICS["verifier_svc"])
            module = _MODULE
        super()._spawn(name, module, flags)


def offloaded_system(
    model: str,
    gateway: Mapping[str, str],
    speculator: Mapping[str, str],
    bytes_per_second: float,
    directory: str,
) -> OffloadedSystem:
    """The usual pool with more flags, a verifier that takes trees of 128 nodes, its layers on the disk."""
    verifier = {"offload": "disk", "offload-directory": directory, "max-nodes": "129"}
    verifier["weights"] = "bf16"
    pool = {name: {**flags, **speculator} for name, flags in default_speculators(model, offload=True).items()}
    options = LocalOptions(model=model, verifier=verifier, gateway=gateway, speculators=pool)
    return OffloadedSystem(options, bytes_per_second)
