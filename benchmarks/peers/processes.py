"""Run peer scripts, each in its own Python environment.

Every peer is loaded once, so that peers can alternate. A missing peer is reported.
"""

import json
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from specinfer.hub import resolve_model
from specinfer.model.weights.account import load_whole
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.source import KEPT_GGUF
from specinfer.system.cache_directory import cache_directory

PEERS = Path(__file__).resolve().parent
VARIANTS = (
    ("vllm", ""),
    ("vllm", "n-gram"),
    ("llama_cpp", ""),
    ("openvino", "int4"),
    ("openvino", "int8"),
)
LONGEST_S = 900
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
    """A peer's process, which starts with its first task."""

    def __init__(
        self, name: str, variant: str, gguf: dict[str, Path], folder: Path, python: Path | None = None
    ) -> None:
        """Prepare the peer; `python` replaces the interpreter of its usual environment."""
        self.label = f"{name} {variant}".strip()
        self._name, self._variant, self._gguf = name, variant, gguf
        self._python = python or PEERS / ".venvs" / name / "bin" / "python"
        self._errors = folder / f"{name}{variant}.log"
        self._process: subprocess.Popen[str] | None = None
        self._missing = ""

    def measure(self, task: dict[str, Any]) -> dict[str, Any] | str:
        """Return the figures of a task, or the reason for their absence."""
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
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> str:
        if not self._python.exists():
            return "not installed: see benchmarks/peers/README.md"
        if self._process is None:
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(
                    [str(self._python), str(PEERS / f"{self._name}_peer.py")],
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
    """Return the model's GGUF file, and a copy in float16.

    Peers with weights in 8 bits quantise the copy.
    """
    whole = folder / "float16"
    whole.mkdir()
    source = extract_gguf(model, folder)
    return {"source": source, "int8": write_float16(source, whole / "weights.gguf")}


def extract_gguf(model: str, folder: Path) -> Path:
    """Write the pulled model's GGUF file to `folder`; return its path."""
    path = folder / f"{model}.gguf"
    path.symlink_to((resolve_model(model) / KEPT_GGUF).resolve())
    return path


FILE_TYPE = "general.file_type"


def write_float16(source: Path, out: Path) -> Path:
    """Copy a GGUF file, with its matrices in float16; return `out`."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", FILE_TYPE):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, weights.astype(np.float32 if weights.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


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
