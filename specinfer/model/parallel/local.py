"""Starts child processes that share a model with this process (rank 0).

They end with this process. A lost rank ends all of them, this process too (`specinfer.model.parallel.ranks`):
an incomplete model is useless. A process has at most one such model.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from specinfer.errors import SettingError
from specinfer.model.options import RunnerOptions
from specinfer.model.parallel.layout import Layout, check_layout
from specinfer.model.parallel.ranks import Ranks
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import load_config
from specinfer.system.parent_process import ending_with_us
from specinfer.system.threads import usable_processors

_TIMEOUT_S = 86_400.0
"""Seconds that followers wait for a command: scripts may pause for hours."""
_END_S = 10.0
"""Seconds to wait for a follower to end, before it is killed."""


class LocalRanks:
    """A model divided among this process (rank 0) and child processes."""

    def __init__(self, directory: Path, options: RunnerOptions, layout: Layout) -> None:
        if torch.distributed.is_initialized():
            reason = "must be 1: this process has a model on several ranks already"
            raise SettingError("tensor_parallel_size", layout.tensor, reason)
        check_layout(load_config(directory), layout)
        threads = max(1, usable_processors() // layout.ranks)
        port = _free_port()
        places = [_place(rank, layout.ranks, threads, port) for rank in range(layout.ranks)]
        work = json.dumps([str(directory), asdict(options), asdict(layout)])
        command = ending_with_us([sys.executable, "-m", __name__, work])
        self._followers = [subprocess.Popen(command, env={**os.environ, **place}) for place in places[1:]]
        torch.set_num_threads(threads)
        with _environment(places[0]):
            self.runner = _load(directory, options, layout)

    def close(self) -> None:
        parallel = self.runner.parallel
        assert parallel is not None, "several ranks share it"
        parallel.stop()
        parallel.ranks.leave()
        for follower in self._followers:
            try:
                follower.wait(_END_S)
            except subprocess.TimeoutExpired:
                follower.kill()
                follower.wait()


def _load(directory: Path, options: RunnerOptions, layout: Layout) -> ModelRunner:
    return load_checked(directory, options, Ranks.join(layout, options.device, _TIMEOUT_S))


def _place(rank: int, ranks: int, threads: int, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(threads),
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _follow(work: str) -> None:
    directory, options, layout = json.loads(work)
    runner = _load(Path(directory), RunnerOptions(**options), Layout(**layout))
    assert runner.parallel is not None, "several ranks share it"
    runner.parallel.follow()
    runner.parallel.ranks.leave()


if __name__ == "__main__":
    _follow(sys.argv[1])
