"""Every kernel compiles to machine code for an A100 (sm_80) and an H100 (sm_90) on any machine."""

import json
import os
import subprocess
import sys

import pytest

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
"""Maximum shared memory of a block in bytes, by architecture (CUDA C++ Programming Guide, compute capabilities)."""
SPILLED_BYTES = {80: 240, 90: 192}
"""Maximum bytes per thread of spilled registers. Large tiles spill, and are still the fastest on an H200."""


@pytest.mark.thorough
def test_every_kernel_compiles_within_shared_memory_and_hardly_spills() -> None:
    command = [sys.executable, "-m", "tests.unit.model.gpu.compile_kernels"]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert {use["architecture"] for use in reports} == set(SHARED_BYTES)
    for use in reports:
        assert use["shared"] <= SHARED_BYTES[use["architecture"]], use
        assert use["stack"] <= SPILLED_BYTES[use["architecture"]], use
