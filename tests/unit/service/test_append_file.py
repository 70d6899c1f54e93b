"""Append-only files: after failures and a restart, a file has exactly the acknowledged records."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from specinfer.system.append_file import AppendFile, read_records
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
