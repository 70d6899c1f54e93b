"""Open the SQLite database of an embedded store.

One process has the file open at a time; a call's data survives the process once its transaction has ended.
"""

import os
import sqlite3
from contextlib import ExitStack
from pathlib import Path

from specinfer.errors import SettingError
from specinfer.system.atomic_files import private

_APPLICATION = 0x53706563
"""SQLite's `application_id` of our files."""
_FORMER = (b"{", b"[")
"""Beginnings of a store's file of version 0.1, which was JSON."""
_FOREIGN = "must be a store's file"
_DAMAGED = "it is damaged ({}): move it away to begin with an empty store"
_SCHEMA = f"""
BEGIN;
CREATE TABLE request (
    id TEXT PRIMARY KEY, idempotency_key TEXT, caller TEXT, created REAL, deadline REAL, owner TEXT,
    adoption INT DEFAULT 1, unowned_since REAL, cancelled INT DEFAULT 0, model TEXT DEFAULT '', drawn TEXT,
    ending TEXT, ended REAL, content TEXT);
CREATE INDEX unfinished ON request (caller) WHERE ending IS NULL;
CREATE INDEX finished ON request (ended);
CREATE TABLE delivery (
    id TEXT REFERENCES request ON DELETE CASCADE, start INT, tokens TEXT, logprobs TEXT, PRIMARY KEY (id, start)
) WITHOUT ROWID;
CREATE TABLE rate (caller TEXT, minute INT, tokens INT, PRIMARY KEY (caller, minute)) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION};
COMMIT;
"""


def open_database(path: Path | None) -> sqlite3.Connection:
    """Open a store's file, and create it if it is missing or empty; None: in memory."""
    try:
        if path is not None:
            _prepare(path.resolve())
        with ExitStack() as closing:
            name = ":memory:" if path is None else path.resolve()
            database = sqlite3.connect(name, timeout=0, check_same_thread=False)
            closing.callback(database.close)
            _begin(database)
            closing.pop_all()
    except (OSError, sqlite3.Error) as error:
        reasons = {
            "SQLITE_BUSY": "in use by another process; choose another file",
            "SQLITE_NOTADB": _FOREIGN,
            "SQLITE_CORRUPT": _DAMAGED.format(error),
        }
        reason = reasons.get(getattr(error, "sqlite_errorname", ""), f"cannot be used: {error}")
        raise SettingError("store", str(path), reason) from error
    return database


def _prepare(path: Path) -> None:
    """Make the file private; raise OSError if it cannot be a store's."""
    if not path.parent.is_dir():
        raise OSError(f"make its folder first, for you alone: mkdir -m 700 {path.parent}")
    if path.exists() and not path.is_file():
        raise OSError("must be a regular file")
    with open(path, "a+b", opener=private) as file:
        os.fchmod(file.fileno(), 0o600)  # also of the log that SQLite makes next to it
        file.seek(0)
        if file.read(2).startswith(_FORMER):
            raise OSError(
                "it has the format of version 0.1: let its requests end with that version, or choose another file"
            )


def _begin(database: sqlite3.Connection) -> None:
    """Lock and check the database; create its tables if it has none."""
    database.row_factory = sqlite3.Row
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    is_new = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not is_new and database.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise OSError(_FOREIGN)
    if is_new:
        database.execute("PRAGMA auto_vacuum = FULL")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")  # checkpoints wait for the disk, transactions do not
    database.execute("PRAGMA foreign_keys = ON")
    if is_new:
        database.executescript(_SCHEMA)
    (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise OSError(_DAMAGED.format(" ".join(found.split())))
