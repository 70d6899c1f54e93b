"""A speculator service that holds something else than the gateway believes, so that it answers RESYNC."""

from typing import Any

import pytest

from specinfer.remote.service import DraftQuery, SpeculatorService
from specinfer.v1 import speculator_pb2

_CALL = 4
"""In the midst of a request: after its prompt and some steps."""


def forget_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service hold one token less of the entry that the gateway encodes as its fourth."""
    encode, calls = SpeculatorService.encode, 0

    def believing(service: SpeculatorService, asked: DraftQuery, *more: Any) -> speculator_pb2.DraftEntry:
        nonlocal calls
        calls += 1
        if calls == _CALL:
            service.cached_len[asked.entry.request_id] -= 1
        return encode(service, asked, *more)

    monkeypatch.setattr(SpeculatorService, "encode", believing)
