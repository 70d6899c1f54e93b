"""Peer scripts, each in an environment of its own, loaded once so that they can take turns; what misses is reported."""

import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.runtime.float16_gguf import write_float16
from specinfer.hub import resolve_model
from specinfer.model.weights.source import KEPT_GGUF

PEERS = Path(__file__).resolve().parent.parent / "peers"
VARIANTS = (
    ("transformers", ""),
    ("vllm", ""),
    ("vllm", "n-gram"),
    ("llama_cpp", ""),
    ("openvino", "int4"),
    ("openvino", "int8"),
)
LONGEST_S = 900


class PeerProcess:
    """One peer; it starts and loads with its first task."""

    def __init__(
        self, name: str, variant: str, gguf: dict[str, Path], folder: Path, python: Path | None = None
    ) -> None:
        """Prepare; `python` is that of the peer's environment, if it is not in its usual place."""
        self.label = f"{name} {variant}".strip()
        self._name, self._variant, self._gguf = name, variant, gguf
        self._python = python or PEERS / ".venvs" / name / "bin" / "python"
        self._errors = folder / f"{name}{variant}.log"
        self._process: subprocess.Popen[str] | None = None
        self._missing = ""

    def measure(self, task: dict[str, Any]) -> dict[str, Any] | str:
        """Return the figures of a task, or why they are missing."""
        self._missing = self._missing or self._start()
        if self._missing or self._process is None:
            return self._missing
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        files = {"gguf": str(self._gguf.get(self._variant, self._gguf["source"]))}
        try:
            print(json.dumps({**task, "variant": self._variant, **files}), file=requests, flush=True)
        except BrokenPipeError:
            return self._failed()
        if not select.select([replies], [], [], LONGEST_S)[0]:
            self._missing = f"took more than {LONGEST_S // 60} minutes"
            self.close()
            return self._missing
        answer = replies.readline()
        return dict(json.loads(answer)) if answer else self._failed()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> str:
        python = self._python
        if self._name == "transformers":
            python = Path(sys.executable)
        if not python.exists():
            return "not installed: see benchmarks/peers/README.md"
        if self._process is None:
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(
                    [str(python), str(PEERS / f"{self._name}_peer.py")],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        return ""

    def _failed(self) -> str:
        last = (self._errors.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        self._missing = f"failed: {last[:200]}"
        return self._missing


def gguf_files(model: str, folder: Path) -> dict[str, Path]:
    """Return the model's GGUF file as it comes, and one in float16 for those who make 8 bits of it."""
    whole = folder / "float16"
    whole.mkdir()
    source = extract_gguf(model, folder)
    return {"source": source, "int8": write_float16(source, whole / "weights.gguf")}


def extract_gguf(model: str, folder: Path) -> Path:
    """The GGUF file as it comes, from the pulled model."""
    path = folder / f"{model}.gguf"
    path.symlink_to((resolve_model(model) / KEPT_GGUF).resolve())
    return path
