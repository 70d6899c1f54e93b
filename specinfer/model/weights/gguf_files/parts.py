"""Finds the files of a split GGUF model, named as by llama.cpp."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specinfer.errors import IncompatibleError

if TYPE_CHECKING:
    from specinfer.model.weights.gguf_files.reader import QuickReader

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def split_stem(name: str) -> str:
    """Return a file's name without part number and extension."""
    named = _NAME.fullmatch(name)
    return named["stem"] if named else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE) or name


def split_name(path: Path) -> Path:
    """Follow links to a path with a part's name; otherwise return `path`."""
    link = path
    while _NAME.fullmatch(link.name) is None and link.is_symlink():
        link = link.parent / link.readlink()
    return link if _NAME.fullmatch(link.name) else path


def paths_of_parts(path: Path) -> list[Path]:
    """Return the paths of all parts of a model, existing or not."""
    named = _NAME.fullmatch(path.name)
    if named is None:
        return [path]
    count = int(named["count"])
    return [path.with_name(f"{named['stem']}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]


def read_parts(path: Path) -> "list[QuickReader]":
    """Return a reader for each part of a GGUF model.

    The parts must be next to the file, or next to its target if the file is a link with another name.
    """
    first = _reader(path)
    count, number = (_number(first, f"split.{name}") for name in ("count", "no"))
    if count <= 1:
        return [first]
    path = split_name(path)
    named = _NAME.fullmatch(path.name)
    if number != 0 or named is None or int(named["count"]) != count:
        whole = f"part {number + 1} of {count} of a split model"
        raise IncompatibleError(f"{path.name} is {whole}: give the first part, NAME-00001-of-{count:05}.gguf")
    paths = paths_of_parts(path)
    if missing := [part.name for part in paths if not part.is_file()]:
        raise IncompatibleError(f"{path.name} is split in {count}: put {missing[0]} into the same folder")
    readers = [first, *map(_reader, paths[1:])]
    for place, reader in enumerate(readers):
        stated = (_number(reader, "split.count"), _number(reader, "split.no"))
        if stated != (count, place):
            raise IncompatibleError(
                f"{paths[place].name} contains part {stated[1] + 1} of {stated[0]}: rename or replace it"
            )
    wanted, tensors = _number(first, "split.tensors.count"), sum(len(reader.tensors) for reader in readers)
    if wanted and wanted != tensors:
        raise IncompatibleError(
            f"{path.name}: the parts have {tensors} of {wanted} tensors (split.tensors.count): copy them again"
        )
    return readers


def read_fields(reader: "QuickReader") -> dict[str, Any]:
    """Return a file's metadata, without the tokenizer's long lists."""
    return {
        name: reader.value(name)
        for name in reader.fields
        if not name.startswith("tokenizer.") or name.endswith("_id")
    }


def _reader(path: Path) -> "QuickReader":
    from specinfer.model.weights.gguf_files.reader import QuickReader  # imported late: it imports gguf

    try:
        return QuickReader(path)
    except (ValueError, KeyError, IndexError) as error:  # raised for invalid content
        raise IncompatibleError(f"cannot read {path} as a GGUF file: {error}") from error


def _number(reader: "QuickReader", name: str) -> int:
    return int(reader.value(name)) if name in reader.fields else 0
