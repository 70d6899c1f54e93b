"""Background threads of low priority."""

import os

import pytest

from specinfer.system.threads import background_threads


def test_threads_work_without_permission_to_set_their_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    assert background_threads(1, "test").submit(lambda: 5).result() == 5
