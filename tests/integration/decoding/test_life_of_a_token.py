"""A plain token of a running request passes through few files, listed in docs/architecture.md."""

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.system import request_for, running_system

ROOT = str(Path(__file__).resolve().parents[3]) + "/"
PACKAGES = ("gateway/", "verifier_svc/", "specinfer/")
MAX_FILES = 73
TOKENS = 40


async def test_a_plain_token_passes_through_few_files(redis_url: str) -> None:
    """Count the files whose functions run before most replies, in all threads.

    Files that run rarely (leases, gauges) do not count. Leases are long, so that they are rare on a slow machine, too.
    """
    seen, ran, watching = Counter[str](), set[str](), False

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if watching and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(ROOT) and name[len(ROOT) :].startswith(PACKAGES):
                ran.add(name[len(ROOT) :])

    threading.setprofile(watch)  # of the verifier's thread, which starts with the system
    sys.setprofile(watch)
    try:
        async with running_system(redis_url, lease_s=60.0) as system:
            tokens = replies = 0
            async for reply in system.stub.Generate(request_for([5, 6, 7], max_new_tokens=2 * TOKENS)):
                tokens += len(reply.token_ids)
                before, ran = ran, set()
                seen.update(list(before))
                replies += bool(before)
                watching = TOKENS // 2 < tokens < 3 * TOKENS // 2
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    files = sorted(name for name, count in seen.items() if count > replies / 2)
    assert any(name.startswith("specinfer/verification/") for name in files), (
        "the verifier's thread is watched"
    )
    assert len(files) <= MAX_FILES, f"{len(files)}: " + " ".join(files)
