"""After failures and a restart, a file has exactly the acknowledged records, or its former content."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.system.atomic_files import AppendFile, read_records, replacing
from tests.support.full_disk import full_disk

RECORDS = st.binary(min_size=1, max_size=40).map(lambda data: data.replace(b"\n", b"."))
WRITES = st.tuples(RECORDS, st.none() | st.integers(0, 41), st.booleans())
"""(record, bytes until the disk is full or None, whether files can be truncated)"""


def whole(path: Path) -> list[bytes]:
    """Return the records of a file as a new process reads them."""
    AppendFile(path).close()
    records, torn = read_records(path)
    assert torn == b""
    return [record for record in records if record]


@given(st.lists(WRITES, max_size=12), st.binary(max_size=30).map(lambda data: data.replace(b"\n", b".")))
def test_acknowledged_records_are_read_after_a_restart(
    writes: list[tuple[bytes, int | None, bool]], torn: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder, full_disk() as disk:
        path = Path(folder) / "file"
        path.write_bytes(b"first\n" + torn)
        file, acknowledged = AppendFile(path), [b"first"]
        for record, disk.room, disk.cuts in writes:
            try:
                file.append(record)
                acknowledged.append(record)
            except OSError:
                copy = Path(folder) / "copy"
                copy.write_bytes(path.read_bytes())  # as if killed now
                room, cuts = disk.room, disk.cuts
                disk.room, disk.cuts = None, True
                assert whole(copy) == acknowledged
                disk.room, disk.cuts = room, cuts
        disk.room, disk.cuts = None, True
        file.close()
        assert whole(path) == acknowledged


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("before")

    def write(text: str, room: int) -> None:
        with replacing(path) as partial:
            partial.write_text(text[:room])
            assert path.read_text() == "before"
            if room < len(text):
                raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write("after", 3)
    assert path.read_text() == "before"
    write("after", 5)
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("file.json", "after")]
