"""Names the stored results of successful probes, so that later starts skip them.

A record is valid for the same weights, the same code of this package and the same versions of libraries. Failures are
not stored: refused models are probed again.
"""

from importlib.metadata import version
from pathlib import Path

from specinfer.model.weights.fingerprint import weights_fingerprint
from specinfer.system.derived import code_digest, derived_path

WHAT = "comparing a few layers with transformers"
"""The probe's label in the progress line."""


def record_path(directory: Path, executor: str) -> Path:
    parts = [weights_fingerprint(directory), executor, code_digest(Path(__file__).parents[1])]
    return derived_path("probes", [*parts, version("transformers"), version("torch")])
