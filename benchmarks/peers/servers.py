"""Start and call servers of OpenAI's API, ours and llama.cpp's."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from specinfer.cli.local.processes import free_ports
from specinfer.errors import SpecInferError, UnavailableError
from specinfer.openai_api.server import ApiServer

_START_S = 300.0
Fields = Mapping[str, Any]


class Server:
    """A server process on a free port; the context ends it."""

    def __init__(self, command: Sequence[str], log: Path, api_key: str | None = None) -> None:
        """Prepare a server; `{host}` and `{port}` in the command are replaced.

        The process's output is written to `log`.
        """
        (port,) = free_ports(1)
        self._command = [part.format(host="127.0.0.1", port=port) for part in command]
        self._api = ApiServer.at(f"http://127.0.0.1:{port}", api_key)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        """Start the process and wait until it lists its model.

        Raises:
            UnavailableError: if the server ends or is late, with its last line of output.
        """
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._api.model()
                self.tokens_per_second(
                    ["Hello."], 1, 2, {}
                )  # llama-server lists the model before it is loaded
                return self
            except SpecInferError:
                time.sleep(0.5)
        self.__exit__()
        last = (self._log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise UnavailableError(f"{self._command[0]} does not answer: {last}")

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def tokens_per_second(
        self,
        texts: Sequence[str],
        streams: int,
        new_tokens: int,
        fields: Fields,
        api_key: str | None = None,
    ) -> float:
        """Return the rate of all answers, `streams` requests at once, prompts included.

        Args:
            texts: one user message per request.
            streams: number of requests at once.
            new_tokens: length of every answer.
            fields: added to every request body.
            api_key: the caller's key; None: the server's.

        Raises:
            SpecInferError: if a request fails.
        """
        api = self._api if api_key is None else replace(self._api, api_key=api_key)
        name, _ = api.model()
        common = {"model": name, "max_tokens": new_tokens, "ignore_eos": True, "temperature": 0, "seed": 1}

        def answer(text: str) -> int:
            body = {**common, **fields, "messages": [{"role": "user", "content": text}]}
            return int(api.get_json("chat/completions", body)["usage"]["completion_tokens"])

        started = time.perf_counter()
        with ThreadPoolExecutor(streams) as pool:
            tokens = sum(pool.map(answer, texts))
        return tokens / (time.perf_counter() - started)
