"""The journal of a replay: a write-ahead log of all events and decisions.

Each event is written before it is processed, and each decision before it is carried out. The journal is a SQLite file
in WAL mode, so a reader sees complete rounds, both during the replay and after the replay was killed. A round is the
input of the scheduler at one instant and the resulting decisions. The run can be made from the facts and the entries
alone (`recovery.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.errors import InputError

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,
    time REAL NOT NULL,      -- time of the round, trace seconds
    kind TEXT NOT NULL,      -- submit, end, requeue, effect, down, up, call, start, resize, cores, reject, cancel,
                             -- kill, clock (steady and monotonic seconds), loop, pause, mask, or an agent event
    job TEXT,
    node TEXT,
    data TEXT NOT NULL       -- JSON
);
"""


class Entry(NamedTuple):
    """An entry of the journal."""

    round: int
    time: float
    kind: str
    job: str | None
    node: str | None
    data: Mapping[str, Any]


class Journal:
    """A journal that is being written. Only its owner can read it."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Create a journal with the facts of the replay at `path`, or continue the journal that exists there.

        Raises:
            InputError: the journal cannot be written. All methods raise this error.
        """
        self.path = path
        with _writing(path):
            if not path.exists():
                _create_private(path)
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")  # a power failure may lose the last rounds, SIGKILL not
            self._database.executescript(SCHEMA)
        self.add_facts(facts)

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Write facts in one transaction. They replace earlier facts of the same names."""
        rows = [(name, json.dumps(value)) for name, value in facts.items()]
        self._insert("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def write(self, entries: Iterable[Entry]) -> None:
        """Write `entries` in one transaction, which is committed when this method returns."""
        rows = [(*entry[:5], json.dumps(entry.data, separators=(",", ":"))) for entry in entries]
        if rows:
            self._insert("INSERT INTO entries (round, time, kind, job, node, data) VALUES (?, ?, ?, ?, ?, ?)", rows)

    def _insert(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with _writing(self.path):
            self._database.execute("BEGIN")
            self._database.executemany(statement, rows)
            self._database.execute("COMMIT")

    def close(self) -> None:
        """Close the journal; may be called again."""
        self._database.close()


def _create_private(path: Path) -> None:
    """Create an empty file that only its owner can read. SQLite gives its other files the same permissions."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Convert write errors to an InputError that names the file. The most likely cause is a full disk."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise InputError(
            f"cannot write the journal: {error}", where=str(path), hint="free space, or choose another folder with -o"
        ) from error


class Reader:
    """A reader of a journal, which may still be written to.

    Args:
        path: the journal.

    Raises:
        InputError: the journal is missing or cannot be read. All methods raise this error.
    """

    def __init__(self, path: Path) -> None:
        """Open the journal without a lock on it."""
        if not path.is_file():
            raise InputError("the journal is missing", where=str(path), hint="give the working folder of a replay")
        self.path = path
        self._read = 0
        with _reading(path):
            self._database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)

    def has_tables(self) -> bool:
        """Return whether the tables of the journal exist."""
        with _reading(self.path):
            return bool(self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchall())

    def facts(self) -> dict[str, Any]:
        """Return the facts written so far."""
        with _reading(self.path):
            rows = self._database.execute("SELECT name, value FROM facts")
            return {name: json.loads(value) for name, value in rows}

    def entries(self) -> list[Entry]:
        """Return the entries that have been written since the last call."""
        with _reading(self.path):
            rows = self._database.execute(
                "SELECT number, round, time, kind, job, node, data FROM entries WHERE number > ? ORDER BY number",
                [self._read],
            )
            entries = []
            for number, round, time, kind, job, node, data in rows:
                entries.append(Entry(round, time, kind, job, node, json.loads(data)))
                self._read = number
            return entries

    def close(self) -> None:
        """Close the journal; may be called again."""
        self._database.close()


def has_facts(path: Path) -> bool:
    """Return whether there is a journal with facts at `path`. The facts are written in one transaction.

    A replay that was killed before that transaction has done nothing.

    Raises:
        InputError: the journal cannot be read.
    """
    if not path.is_file() or not path.stat().st_size:
        return False
    with contextlib.closing(Reader(path)) as reader:
        return reader.has_tables() and bool(reader.facts())


def read(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    """Return the facts and the entries of a journal, complete or not.

    Raises:
        InputError: the journal is missing or cannot be read.
    """
    with contextlib.closing(Reader(path)) as reader:
        return reader.facts(), reader.entries()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert read errors to an InputError that names the file."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"the journal cannot be read: {error}", where=str(path)) from error


def copy(path: Path, target: Path) -> Path:
    """Copy the journal at `path`, which may still be written to, to the new file `target`, and return `target`.

    Raises:
        InputError: the journal cannot be read, or `target` cannot be written.
    """
    with _writing(target):
        _create_private(target)  # SQLite accepts an empty file
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("VACUUM INTO ?", [str(target)])
    return target
