"""Fixtures shared by all tests: a real Redis, and the default model if it was pulled."""

import os
import sys

# of workers and of all programs that tests start, too: each would compile a thousand files
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_THREADS = max(1, (os.cpu_count() or 1) // WORKERS)
# before torch loads OpenMP, which reads this once; of processes that tests start, too: its threads spin while they wait
# for each other, and workers share the cores. Workers inherit what the process that starts them has set.
if WORKERS > 1:
    os.environ["OMP_NUM_THREADS"] = str(_THREADS)
os.environ.setdefault("OMP_NUM_THREADS", str(_THREADS))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
for _service in ("GATEWAY", "VERIFIER", "SPECULATOR"):
    # processes that tests start side by side must not meet at the default ports
    os.environ.setdefault(f"SPECINFER_{_service}_METRICS_PORT", "0")
os.environ.setdefault("SPECINFER_HTTP_LISTEN", "none")  # of `specinfer up`
# background work of this process, and of all that tests start: tests wait for it, beside whatever the machine does
sys.path.insert(0, _SITE := os.path.join(os.path.dirname(__file__), "support", "site"))
import sitecustomize  # noqa: F401

del sys.path[0]
os.environ["PYTHONPATH"] = os.pathsep.join([_SITE, *filter(None, [os.environ.get("PYTHONPATH")])])

import asyncio
import functools
import gc
import inspect
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import hypothesis
import pytest
import torch
from redis import Redis

from specinfer.cli.local import processes
from specinfer.cli.local.processes import Child, free_ports, wait_for_port
from specinfer.cli.local.redis_server import redis_command
from specinfer.errors import SettingError, UnavailableError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.native.build import load_library
from specinfer.system.cache_directory import cache_directory

gc.disable()  # while tests are collected: looking for garbage among what is imported takes a third of that time
torch.set_num_threads(_THREADS)
# how long an example takes depends on the machine
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")
_HANGS_AFTER_S = 240.0
"""Seconds after which an asynchronous test fails; less than the timeout in pyproject.toml."""
_SHARED_CACHE = ("float", "models", "native", "node", "probes", "test-images")
"""Folders of the user's cache that tests read and extend: downloads, builds and measurements."""
_CACHE = pytest.StashKey[str]()
"""Cache directory of the tests."""


def _why_not_native() -> str | None:
    """Return the reason why the compiled kernels cannot run here, or None."""
    try:
        load_library()
    except UnavailableError as error:
        if " failed: " in str(error):
            raise  # there is a compiler: kernels that it rejects are a mistake, not a reason to skip
        return str(error)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Give every test the same random numbers, whichever tests ran before it."""
    torch.manual_seed(0)


def pytest_configure(config: pytest.Config) -> None:
    """Give every worker its own ports, and compile the kernels once, before workers start."""
    worker = int(getattr(config, "workerinput", {"workerid": "gw0"})["workerid"].removeprefix("gw"))
    processes.PORTS = range(10_000 + 1_000 * (worker % 10), 11_000 + 1_000 * (worker % 10))
    if hasattr(config, "workerinput"):
        return
    os.environ["SPECINFER_CACHE"] = config.stash[_CACHE] = _cache_of_tests()
    if config.getoption("numprocesses", None):
        _why_not_native()


def _cache_of_tests() -> str:
    """Return a new cache directory: the user's, but without its list of GGUF files."""
    folder = Path(mkdtemp(prefix="specinfer-cache-"))
    for name in _SHARED_CACHE:
        (cache_directory() / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(cache_directory() / name)
    return str(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _CACHE in config.stash:
        shutil.rmtree(config.stash[_CACHE])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit the time of asynchronous tests, and skip those that cannot run here."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _within(_HANGS_AFTER_S, item.obj)
    _skip_native(items)
    if not os.environ.get("SPECINFER_TEST_THOROUGH"):
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: `make test-thorough`"))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU"))


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection."""
    gc.freeze()
    gc.set_threshold(700, 10, 10)  # where `sitecustomize` has set another
    gc.enable()


def _within(seconds: float, test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Fail a test that hangs. If pytest-timeout ended it, its servers would run until they
    are collected, and fail another test ("coroutine 'AioServer.shutdown' was never awaited")."""

    @functools.wraps(test)
    async def timed(**fixtures: object) -> None:
        async with asyncio.timeout(seconds):
            await test(**fixtures)

    return timed


def _skip_native(items: list[pytest.Item]) -> None:
    """Skip tests of the compiled kernels (marked, or with a parameter "native") if kernels cannot run."""
    reason = _why_not_native()
    if reason is None:
        return
    for item in items:
        parameters = getattr(item, "callspec", None)
        wanted = parameters is not None and "native" in parameters.params.values()
        if wanted or item.get_closest_marker("native"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Redis server that this session started; tests delete its data."""
    directory, port = tmp_path_factory.mktemp("redis"), free_ports(1)[0]
    child = Child("redis", redis_command(port, directory), directory / "redis.log", {})
    wait_for_port(child, f"127.0.0.1:{port}", timeout_s=60)
    yield f"redis://127.0.0.1:{port}/0"
    child.terminate()
    child.join(timeout_s=5)


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """URL of the session's Redis server, emptied: gateways would adopt the requests of earlier tests."""
    with Redis.from_url(redis_server) as redis:
        redis.flushall()
    return redis_server


@pytest.fixture(scope="session")
def default_model() -> Path:
    try:
        return resolve_model(DEFAULT_MODEL)
    except SettingError as error:
        pytest.fail(f"{error}; `make test` does it")
