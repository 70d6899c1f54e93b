"""One plain token of a running request passes through few files, and docs/architecture.md names the way."""

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.system import request_for, running_system

ROOT = str(Path(__file__).resolve().parents[2]) + "/"
PACKAGES = ("gateway/", "verifier_svc/", "specinfer/")
MOST = 78
TOKENS = 40


async def test_a_plain_token_passes_through_few_files(redis_url: str) -> None:
    """All threads are watched; files that run for few of the tokens (gauges) are no part of its life.

    Leases are long, so that they are not renewed for many of the tokens on a slow machine.
    """
    seen, watching = Counter[str](), False

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if watching and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(ROOT) and name[len(ROOT) :].startswith(PACKAGES):
                seen[name[len(ROOT) :]] += 1

    threading.setprofile(watch)  # of the verifier's thread, which starts with the system
    sys.setprofile(watch)
    try:
        async with running_system(redis_url, lease_s=60.0) as system:
            tokens = 0
            async for reply in system.stub.Generate(request_for([5, 6, 7], max_new_tokens=2 * TOKENS)):
                tokens += len(reply.token_ids)
                watching = TOKENS // 2 < tokens < 3 * TOKENS // 2
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    way = sorted(name for name, calls in seen.items() if calls > TOKENS // 2)
    assert any(name.startswith("specinfer/verification/") for name in way), "the verifier's thread is watched"
    assert len(way) <= MOST, f"{len(way)}: " + " ".join(way)
