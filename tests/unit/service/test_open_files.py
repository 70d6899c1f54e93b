"""Connections are bounded by the limit of open files, which is raised at start."""

import logging
import resource
import subprocess
import sys

import pytest

from specinfer.system.open_files import max_connections

PROGRAM = """
import resource
from specinfer.system.open_files import max_connections, raise_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
raise_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
raise_limit()
print(max_connections(8192))
"""


def test_the_limit_is_raised_as_far_as_the_system_allows() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(ran.stdout) == 1024 - 256


@pytest.mark.parametrize(
    ("limit", "connections"), [(resource.RLIM_INFINITY, 8192), (10**6, 8192), (1024, 768), (100, 50)]
)
def test_files_keep_a_reserve(
    limit: int, connections: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    with caplog.at_level(logging.WARNING):
        assert max_connections(8192) == connections
    assert bool(caplog.messages) == (connections < 256)
