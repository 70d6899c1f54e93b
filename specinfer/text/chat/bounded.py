"""Render chat templates with limits of time and memory.

Processes of `specinfer.text.chat.rendering` do the work.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from jinja2 import TemplateError

from specinfer.text.chat.hidden import Hider
from specinfer.text.chat.rendering import MEMORY_BYTES, SECONDS

_IDLE = 2
"""Maximum number of processes that wait for work."""


class RenderError(Exception):
    """A template raised an exception."""


class RenderLimitError(RenderError):
    """A template was stopped at a limit."""


class BoundedTemplates:
    """Renders a model's templates; thread-safe. Processes are started on demand."""

    def __init__(self, texts: Mapping[str, str], specials: Mapping[str, Any]) -> None:
        self._first = _line({"texts": dict(texts), "specials": dict(specials)})
        self._idle: dict[int, list[subprocess.Popen[bytes]]] = {}
        """Waiting processes, by their parent's id: a fork needs its own."""
        self._lock = threading.Lock()
        weakref.finalize(self, lambda idle: _end(idle.get(os.getpid(), ())), self._idle)

    def problem(self) -> str | None:
        """Return name and error of a template that cannot be compiled."""
        return self._ask(_line({})).get("problem")

    def render(self, name: str, values: Mapping[str, Any], hider: Hider | None) -> str:
        """Return the text of a template."""
        try:
            line = _line({"name": name, "values": values, "signs": hider.signs if hider else ""})
        except (TypeError, ValueError, RecursionError) as error:
            raise RenderError(f"the conversation is not JSON: {error}") from error
        answer = self._ask(line)
        if "refused" in answer:
            raise TemplateError(answer["refused"])
        if "failed" in answer:
            raise RenderError(answer["failed"])
        return answer["text"]

    def _ask(self, line: bytes) -> dict[str, str]:
        process, reply = self._take(), b""
        asked, answers = _pipes(process)
        try:
            with suppress(BrokenPipeError):  # the process ended
                asked.write(line)
                asked.flush()
                reply = answers.readline()
        except BaseException:
            _end([process])
            raise
        if reply:
            self._give_back(process)
            answer: dict[str, str] = json.loads(reply)
            return answer
        _end([process])
        if process.returncode == -signal.SIGPROF:
            raise RenderLimitError(f"takes longer than {SECONDS:g} s")
        raise RenderLimitError(f"needs over {MEMORY_BYTES >> 20} MiB, or is nested too deeply")

    def _take(self) -> subprocess.Popen[bytes]:
        """Return a waiting process, or start one."""
        with self._lock:
            idle = self._idle.setdefault(os.getpid(), [])
            while idle:
                process = idle.pop()
                if process.poll() is None:
                    return process
                _end([process])
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "specinfer.text.chat.rendering"]
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        # standard error is dropped: it may quote a request
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=os.environ | paths
        )
        _pipes(process)[0].write(self._first)
        return process

    def _give_back(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            idle = self._idle.setdefault(os.getpid(), [])
            idle.append(process)
            surplus = [idle.pop(0)] if len(idle) > _IDLE else []
        _end(surplus)


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        for pipe in _pipes(process):
            with suppress(BrokenPipeError):  # what was not written is lost with the process
                pipe.close()
