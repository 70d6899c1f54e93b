"""Store an offered checkpoint and accepted versions in a learning service's directory."""

import fcntl
import shutil
from pathlib import Path

from specinfer.errors import InvalidInputError, SettingError
from specinfer.system.atomic_files import replacing

FILES = ("config.json", "model.safetensors")
MAX_BYTES, MAX_PART_BYTES = 2**30, 2**20
"""Maximum bytes of an offered checkpoint, and of one message's part."""


class Checkpoints:
    """Files of an offered checkpoint and of accepted versions."""

    def __init__(self, directory: Path) -> None:
        """Lock a directory, created if missing."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = (directory / ".lock").open("w")
        except OSError as error:
            raise SettingError(
                "learn", str(directory), f"cannot be written: {error.strerror or error}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise SettingError("learn", str(directory), "another service uses this directory") from error
        self._directory, self._size = directory, 0

    def close(self) -> None:
        """Unlock the directory."""
        self._lock.close()

    @property
    def offered(self) -> Path:
        return self._directory / ".offered"

    @property
    def current(self) -> int:
        """Number of the last served version; 0 for the weights at start."""
        path = self._directory / "current"
        text = path.read_text() if path.is_file() else "0"
        return int(text) if text.strip().isdecimal() else 0

    def mark(self, number: int) -> None:
        """Store the number of the version in use."""
        with replacing(self._directory / "current") as partial:
            partial.write_text(f"{number}\n")

    @property
    def versions(self) -> list[int]:
        names = [path.name.removeprefix("version-") for path in self._directory.glob("version-*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def version(self, number: int) -> Path:
        return self._directory / f"version-{number}"

    def begin(self) -> None:
        """Create an empty directory for an offer."""
        self.drop()
        self.offered.mkdir()
        self._size = 0

    def add(self, name: str, data: bytes) -> None:
        """Append bytes to a file of the offer."""
        if name not in FILES:
            raise InvalidInputError("file", name, f"must be one of {', '.join(FILES)}")
        if len(data) > MAX_PART_BYTES:
            raise InvalidInputError("data", len(data), f"at most {MAX_PART_BYTES} in a message", "bytes")
        self._size += len(data)
        if self._size > MAX_BYTES:
            raise InvalidInputError("data", self._size, f"at most {MAX_BYTES} in a checkpoint", "bytes")
        with (self.offered / name).open("ab") as file:
            file.write(data)

    def check_whole(self) -> None:
        """Check that no file is missing."""
        for name in FILES:
            if not (self.offered / name).is_file():
                raise InvalidInputError("file", name, "is missing in the offer")

    def keep(self, number: int) -> Path:
        """Store the offer as this version; return its directory."""
        self.remove(number)
        return self.offered.rename(self.version(number))

    def drop(self) -> None:
        shutil.rmtree(self.offered, ignore_errors=True)

    def keep_only(self, *numbers: int) -> None:
        """Remove all versions except `numbers`."""
        for number in set(self.versions) - set(numbers):
            self.remove(number)

    def remove(self, number: int) -> None:
        """Remove a version, if stored."""
        shutil.rmtree(self.version(number), ignore_errors=True)
