"""Run llama.cpp's passes in a Python environment of its own, loaded once."""

import json
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from specinfer.errors import UnavailableError
from specinfer.hub import resolve_model
from specinfer.model.weights.account import load_whole
from specinfer.model.weights.config_files import load_config
from specinfer.system.cache_directory import cache_directory

_SCRIPT = Path(__file__).with_name("llama_cpp_passes_peer.py")
_LONGEST_S = 900
_BESIDE = (
    "generation_config",
    "chat_template",
    "tokenizer",
    "vocab",
    "merges",
    "special_tokens",
    "added_tokens",
)
"""Prefixes of a model's files besides configuration and weights."""


class PeerProcess:
    """llama.cpp with one model and one format of keys and values."""

    def __init__(self, python: Path, gguf: Path, variant: str, log: Path) -> None:
        """Start the process; what it prints goes to `log`.

        Raises:
            UnavailableError: if the interpreter does not exist.
        """
        self._fields, self._log = {"gguf": str(gguf), "variant": variant}, log
        if not python.exists():
            raise UnavailableError(f"{python}: no such Python; see benchmarks/peers/README.md")
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def measure(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the figures of a task.

        Raises:
            UnavailableError: if the process failed or is late, with its last line.
        """
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        try:
            print(json.dumps({**task, **self._fields}), file=requests, flush=True)
            late = not select.select([replies], [], [], _LONGEST_S)[0]
            answer = "" if late else replies.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            return dict(json.loads(answer))
        last = (self._log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise UnavailableError(f"llama.cpp cannot be measured: {last[:200]}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def write_float_model(model: str) -> Path:
    """Write a model as bfloat16 into the cache; return the directory.

    An existing directory is reused.
    """
    source, directory = resolve_model(model), cache_directory() / "float" / model
    if not (directory / "model.safetensors").is_file():
        load_whole(source, load_config(source).family, torch.bfloat16).save_pretrained(directory)
        for path in source.iterdir():
            if path.name.startswith(_BESIDE):
                shutil.copyfile(path, directory / path.name)
    return directory
