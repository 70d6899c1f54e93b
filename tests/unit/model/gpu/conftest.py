"""Fixture of tests about devices: a GPU where there is none."""

import pytest

from specinfer.model import backends, loading, memory
from tests.unit.model.gpu.passes import DEVICE


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests' device count as a GPU: the interpreter runs its kernels."""
    for module in (backends, loading, memory):
        monkeypatch.setattr(module, "is_cuda", lambda device: device == DEVICE)
