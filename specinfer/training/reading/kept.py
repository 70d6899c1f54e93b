"""Keep texts with the target's hidden states as bytes.

A text has a file of its own, so that any stop loses only the text in work, and a rerun skips the files that exist.
States have a scale for every `GROUP` numbers: a few numbers of a state are much larger than all others, and with one
scale for the whole state the others would be rounded to 0. Scales are float16: numbers may be from 1e-3 to 8e6.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import SettingError
from specinfer.system.atomic_files import replacing
from specinfer.system.json_files import read_json
from specinfer.training.corpus import Continuation

GROUP = 32
_FACTS = "states.json"


class Bytes(NamedTuple):
    """Numbers as bytes times a scale for each group of the last dimension."""

    values: NDArray[np.int8]
    scales: NDArray[np.float32]

    @classmethod
    def of(cls, numbers: NDArray[np.float32]) -> "Bytes":
        """Round numbers [..., n] to bytes."""
        groups = numbers.reshape(*numbers.shape[:-1], -1, math.gcd(GROUP, numbers.shape[-1]))
        scales = np.abs(groups).max(-1, keepdims=True) / 127
        values = np.rint(groups / np.where(scales > 0, scales, 1)).astype(np.int8)
        return cls(values.reshape(numbers.shape), scales[..., 0])

    def numbers(self) -> NDArray[np.float32]:
        groups = self.values.reshape(*self.scales.shape, -1) * self.scales[..., None]
        return groups.reshape(self.values.shape).astype(np.float32)


@dataclass(frozen=True, slots=True)
class KeptText:
    """A text's file, with the tokens in memory and the states on disk."""

    path: Path
    item: Continuation

    @property
    def kind(self) -> str:
        """`READ`, `OWN` or `HELD_OUT`."""
        return self.path.name.split("-")[0]

    def states(self) -> NDArray[np.float32]:
        """Read the hidden states of all tokens but the last [tokens - 1, layers, hidden]."""
        with np.load(self.path) as data:
            return Bytes(data["values"], data["scales"].astype(np.float32)).numbers()


READ, OWN, HELD_OUT = "read", "own", "held_out"
"""Kinds of texts: found ones, answers of the target, and answers that are not trained on."""


class KeptTexts:
    """Directory of kept texts of one target."""

    def __init__(self, directory: Path, target: str, layers: Sequence[int]) -> None:
        """Open or create the directory; refuse one of another target or without these layers."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path, wanted = directory / _FACTS, {"target": target, "layers": list(layers)}
        if not path.is_file():
            path.write_text(json.dumps(wanted))
        found = read_json(path)
        if found["target"] != target or not set(layers) <= set(found["layers"]):
            raise SettingError("work", str(directory), f"has states of {found}, not of {wanted}")
        self.directory = directory
        self.layers: tuple[int, ...] = tuple(found["layers"])
        """All kept layers."""

    def places(self, layers: Sequence[int]) -> list[int]:
        """Return the places of some layers in a text's states."""
        return [self.layers.index(layer) for layer in layers]

    def has(self, digest: str) -> bool:
        return self._path(READ, digest).is_file()

    def text(self, digest: str, item: Continuation) -> KeptText:
        """Return a text that was read and kept."""
        return KeptText(self._path(READ, digest), item)

    def keep(self, digest: str, item: Continuation, states: NDArray[np.float32], kind: str = READ) -> int:
        """Write a text with the states of all tokens but the last; return its bytes."""
        assert len(states) == item.tokens - 1
        path, packed = self._path(kind, digest), Bytes.of(states)
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(
                file,
                prompt=np.array(item.prompt, np.int32),
                output=np.array(item.output, np.int32),
                values=packed.values,
                scales=packed.scales.astype(np.float16),
            )
        return path.stat().st_size

    def texts(self) -> Iterator[KeptText]:
        """Yield all texts in order of their names, which are random."""
        for path in sorted(self.directory.glob("*.npz")):
            with np.load(path) as data:
                yield KeptText(
                    path, Continuation(tuple(data["prompt"].tolist()), tuple(data["output"].tolist()))
                )

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.directory.glob("*.npz"))

    def _path(self, kind: str, digest: str) -> Path:
        return self.directory / f"{kind}-{digest}.npz"
