"""The journal of a replay: every event before it is acted on, every decision before it is carried out.

A SQLite file in WAL mode, so that whoever reads it while the replay runs, or after it was killed, sees whole
rounds. A round is what the scheduler takes in at one instant, and what it then decides.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.errors import InputError

SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE entries (
    number INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,
    time REAL NOT NULL,      -- trace seconds: the instant the scheduler was told
    kind TEXT NOT NULL,      -- submit, end, effect, call, start, resize, cores, reject, cancel, kill; or an agent's
    job TEXT,
    node TEXT,
    data TEXT NOT NULL       -- JSON
);
"""


class Entry(NamedTuple):
    """A line of the journal."""

    round: int
    time: float
    kind: str
    job: str | None
    node: str | None
    data: Mapping[str, Any]


class Journal:
    """The journal that is being written."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Begin a journal at `path` (there must be none yet), with the facts of the replay.

        Raises:
            InputError: it cannot be written; so for all methods.
        """
        with _writing(path):
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")  # survives our death; a power cut may cost the end
            self._database.executescript(SCHEMA)
            self._database.executemany(
                "INSERT INTO facts VALUES (?, ?)", [(name, json.dumps(value)) for name, value in facts.items()]
            )
        self.path = path

    def write(self, entries: Iterable[Entry]) -> None:
        """Write `entries` in one transaction; they are on record when this returns."""
        rows = [(*entry[:5], json.dumps(entry.data, separators=(",", ":"))) for entry in entries]
        if rows:
            with _writing(self.path):
                self._database.execute("BEGIN")
                self._database.executemany(
                    "INSERT INTO entries (round, time, kind, job, node, data) VALUES (?, ?, ?, ?, ?, ?)", rows
                )
                self._database.execute("COMMIT")

    def copy(self, path: Path) -> Path:
        """Write what there is into one file at `path`, whoever reads the journal meanwhile, and return it."""
        with _writing(path):
            self._database.execute("VACUUM INTO ?", [str(path)])
        return path

    def close(self) -> None:
        """Close it; may be called again."""
        self._database.close()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Have SQLite's errors name the file, which most likely has no room to grow."""
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(
            f"cannot write the journal: {error}", where=str(path), hint="free space, or name another folder with -o"
        ) from error


def read(path: Path) -> tuple[dict[str, Any], Iterator[Entry]]:
    """Return the facts and the entries of a journal, finished or not.

    Raises:
        InputError: there is none, or it is damaged.
    """
    if not path.is_file():
        raise InputError("there is no journal", where=str(path), hint="name the folder of a replay")
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        facts = {name: json.loads(value) for name, value in database.execute("SELECT * FROM facts")}
        rows = database.execute("SELECT round, time, kind, job, node, data FROM entries ORDER BY number").fetchall()
        database.close()
    except sqlite3.Error as error:
        raise InputError(f"the journal is damaged: {error}", where=str(path)) from error
    return facts, (Entry(row[0], row[1], row[2], row[3], row[4], json.loads(row[5])) for row in rows)
