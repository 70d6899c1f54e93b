"""The directory of a service that learns: a checkpoint that is being offered, and the versions that draft."""

import shutil
from pathlib import Path

from specinfer.errors import InvalidInputError

FILES = ("config.json", "model.safetensors")
MOST_BYTES = 2**30
"""Most bytes of an offered checkpoint."""


class Checkpoints:
    """Files of offered weights, and of those that were taken."""

    def __init__(self, directory: Path) -> None:
        """Keep checkpoints in a directory, which is made if it is not there."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._size = directory, 0

    @property
    def offered(self) -> Path:
        """Directory of the checkpoint that is being offered."""
        return self._directory / "offered"

    @property
    def versions(self) -> list[int]:
        """Numbers of the versions that are there."""
        names = [path.name.removeprefix("version-") for path in self._directory.glob("version-*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def version(self, number: int) -> Path:
        """Return the directory of a version."""
        return self._directory / f"version-{number}"

    def begin(self) -> None:
        """Make room for an offer."""
        self.drop()
        self.offered.mkdir()
        self._size = 0

    def add(self, name: str, data: bytes) -> None:
        """Append bytes to a file of the offer.

        Raises:
            InvalidInputError: for a file that none has, or for too many bytes.
        """
        if name not in FILES:
            raise InvalidInputError("file", name, f"must be one of {', '.join(FILES)}")
        self._size += len(data)
        if self._size > MOST_BYTES:
            raise InvalidInputError("data", self._size, f"bytes, at most {MOST_BYTES}")
        with (self.offered / name).open("ab") as file:
            file.write(data)

    def check_whole(self) -> None:
        """Check that no file is missing.

        Raises:
            InvalidInputError: naming one that is.
        """
        for name in FILES:
            if not (self.offered / name).is_file():
                raise InvalidInputError("file", name, "is missing")

    def keep(self, version: int) -> Path:
        """Make the offer the version of this number; return its directory."""
        kept = self.version(version)
        shutil.rmtree(kept, ignore_errors=True)
        self.offered.rename(kept)
        return kept

    def drop(self) -> None:
        """Remove the offer."""
        shutil.rmtree(self.offered, ignore_errors=True)

    def keep_only(self, *models: str) -> None:
        """Remove all versions but these."""
        for path in self._directory.glob("version-*"):
            if str(path) not in models:
                shutil.rmtree(path, ignore_errors=True)
