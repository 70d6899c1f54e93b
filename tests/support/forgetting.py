"""Make a speculator service lose a token, so that it answers RESYNC."""

from typing import Any

import pytest

from specinfer.engine.draft_group import DraftQuery
from specinfer.remote.service import SpeculatorService
from specinfer.v1 import speculator_pb2

_CALL = 4
"""Number of the changed call: after a request's prompt and some steps."""


def forget_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop a token of the fourth entry that the gateway encodes."""
    encode, calls = SpeculatorService.encode, 0

    def believing(service: SpeculatorService, asked: DraftQuery, *more: Any) -> speculator_pb2.DraftEntry:
        nonlocal calls
        calls += 1
        if calls == _CALL:
            service.cached_len[asked.entry.request_id] -= 1
        return encode(service, asked, *more)

    monkeypatch.setattr(SpeculatorService, "encode", believing)
