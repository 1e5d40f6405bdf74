"""The journal of a replay: a write-ahead log of all events and decisions.

Each event is written before it is processed, and each decision before it is carried out. The journal is a SQLite file
in WAL mode, so a reader sees complete rounds, both during the replay and after the replay was killed. A round is the
input of the scheduler at one instant and the resulting decisions. The run can be made from the facts and the entries
alone (`recovery.py`).

The rows of both tables have consecutive numbers, and each row has a checksum: the SHA-256 of the checksum before and
of the row. A row that was changed, removed, inserted or moved therefore breaks the chain, unless all later checksums
are computed again. The file of the head, beside the journal, contains the last row of the chain. It distinguishes a
journal that lost its last rows from a complete one. A reader verifies every row, so a journal that was damaged or
edited is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.benchmarks.lines import decoded, encoded
from tracebed.ground import system
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import FILES

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (
    number INTEGER PRIMARY KEY,  -- one sequence for the rows of both tables
    name TEXT NOT NULL,          -- the last row of a name counts
    value TEXT NOT NULL,         -- JSON
    chain BLOB NOT NULL          -- checksum of this row and of the checksum before (`Chain`)
);
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY,
    round INTEGER NOT NULL,
    time REAL NOT NULL,      -- time of the round, trace seconds
    kind TEXT NOT NULL,      -- submit, end, requeue, effect, down, up, power, call, start, resize, cores, reject,
                             -- cancel, kill, clock (steady and monotonic seconds), loop, pause, mask, or an agent event
    job TEXT,
    node TEXT,
    data TEXT NOT NULL,      -- JSON
    chain BLOB NOT NULL
);
"""
TABLES = "SELECT 1 FROM sqlite_master WHERE name = 'entries'"
"""One row once both tables exist: `entries` is created last."""
ROWS = """
SELECT number, round, time, kind, job, node, data, chain FROM entries WHERE number > :last
UNION ALL
SELECT number, NULL, NULL, NULL, name, NULL, value, chain FROM facts WHERE number > :last
ORDER BY number
"""
"""The rows of both tables after the row `:last`, in the form that their checksums cover. A fact has no kind."""
LAST = "SELECT number, chain FROM (SELECT * FROM ({} UNION ALL {})) ORDER BY number DESC LIMIT 1".format(
    *(
        f"SELECT number, chain FROM {table} WHERE number = (SELECT MAX(number) FROM {table})"
        for table in ("entries", "facts")
    )
)
"""The number and the checksum of the last row."""
ADD_FACT = "INSERT INTO facts (number, name, value, chain) VALUES (?1, ?5, ?7, ?8)"
MISSING = "missing"
"""The fact that has the number of rows that power failures have lost."""
NO_HEAD = "no_head"
"""The fact that the head of a journal with entries was missing, so that nothing proves its last rows."""
SAVED = "saved"
"""Name of the last fact of the journal in the folder of a run. Readers do not return the fact."""
HEAD_SUFFIX = "-head"
"""Suffix of the file of the head, after the name of the journal."""
HEAD_MAGIC = "tracebed-head/1"


class Entry(NamedTuple):
    """An entry of the journal."""

    round: int
    time: float
    kind: str
    job: str | None
    node: str | None
    data: Mapping[str, Any]


class DamagedJournal(InputError):
    """A damaged journal, which neither continues nor becomes a run."""


class Chain:
    """The chain of the rows up to a certain one."""

    def __init__(self, number: int = 0, digest: bytes = b"") -> None:
        self.number, self.digest = number, digest  # of the last row

    def extended(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the next row, with its number before it and its checksum after it."""
        self.number += 1
        numbered = (self.number, *row)
        self.digest = hashlib.sha256(self.digest + encoded(numbered).encode()).digest()
        return (*numbered, self.digest)


class LastRow(NamedTuple):
    """The last row that was written to a journal."""

    number: int
    digest: bytes
    boot: str | None  # identity of the kernel that ran then; None: unknown

    @property
    def same_boot(self) -> bool:
        """Whether the machine has not been restarted since. A row of this boot can be lost by damage only."""
        return self.boot is not None and self.boot == system.current().boot_id()


class Head:
    """The file of the head of a journal that is being written. Only its owner can read it.

    A row is committed before the head is written. If the writer is killed, the journal may be ahead of the head.
    """

    def __init__(self, journal: Path) -> None:
        self._file: int | None = os.open(head_path(journal), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._boot = system.current().boot_id() or ""

    def write(self, chain: Chain) -> None:
        """Replace the content of the file in one system call. The length is constant."""
        if self._file is not None:
            line = f"{HEAD_MAGIC} {chain.number:020d} {chain.digest.hex()} {self._boot}\n"
            system.current().pwrite(self._file, line.encode(), 0)

    def close(self) -> None:
        """Close the file; may be called again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def head_path(journal: Path) -> Path:
    """Return the file of the head of `journal`."""
    return journal.with_name(journal.name + HEAD_SUFFIX)


def written(journal: Path) -> LastRow | None:
    """Return the last row that was written to `journal`; None: there is no head, as in the folder of a run."""
    path = head_path(journal)
    try:
        if not (text := path.read_bytes()):
            return None  # the writer was killed before its first row
        magic, number, digest, *boot = text.decode("ascii").split()
        if magic != HEAD_MAGIC:
            raise ValueError(f"{magic} is not {HEAD_MAGIC}")
        return LastRow(int(number), bytes.fromhex(digest), boot[0] if boot else None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        what = f"the head of the journal is damaged: {error}"
        hint = "delete the file to use the journal without it: the run has a warning then"
        raise DamagedJournal(what, where=str(path), hint=hint) from error


class Journal:
    """A journal that is being written. Only its owner can read it."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Create a journal with the facts of the replay at `path`, or continue the journal that exists there."""
        self.path = path
        with _writing(path):
            if not path.exists():
                _create_private(path)
            self._database = system.current().database(path)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")  # a power failure may lose the last rounds, SIGKILL not
            self._database.executescript(SCHEMA)
            self._chain = _chain_of(self._database)
            self._head = Head(path)
        self.add_facts(facts)

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Write facts in one transaction. They replace earlier facts of the same names."""
        self._insert(ADD_FACT, [_fact(name, value) for name, value in facts.items()])

    def write(self, entries: Iterable[Entry]) -> None:
        """Write `entries` in one transaction, which is committed when this method returns."""
        rows = [(*entry[:5], encoded(entry.data)) for entry in entries]
        self._insert("INSERT INTO entries VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)", rows)

    def _insert(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        chain = Chain(self._chain.number, self._chain.digest)
        with _writing(self.path):
            self._database.execute("BEGIN")
            self._database.executemany(statement, map(chain.extended, rows))
            self._database.execute("COMMIT")
            self._chain = chain
            self._head.write(chain)

    def close(self) -> None:
        """Close the journal; may be called again."""
        self._database.close()
        self._head.close()


def _chain_of(database: sqlite3.Connection) -> Chain:
    """Return the chain of the rows that were written to a journal."""
    last = database.execute(LAST).fetchone()
    return Chain(*last) if last else Chain()


def _fact(name: str, value: Any) -> tuple[Any, ...]:
    """Return the row of a fact, in the form of `ROWS` without its number and checksum."""
    return (None, None, None, name, None, json.dumps(value))


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
    """A reader of a journal, which may still be written to. Each row is verified when it is read.

    The last rows may be missing after a power failure. If the machine has not been restarted since they were written,
    or if the journal belongs to a saved run, missing rows mean that the journal is damaged. A journal that is being
    created has no tables yet, and thus no rows. The entries of a long replay do not fit into memory: `stream` returns
    them one by one. All methods raise InputError if the journal is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        """Open the journal without a lock on it."""
        if not path.is_file():
            raise InputError("the journal is missing", where=str(path), hint="give the working folder of a replay")
        self.path = path
        self._missing = 0
        self._no_head = self._begun = self._saved = False
        self._complete = not path.with_name(FILES[0]).is_file()
        self._chain = Chain()
        self.known: dict[str, Any] = {}  # the facts of the rows that have been read
        self._entries: list[Entry] = []
        with _reading(path):
            self._database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)

    def facts(self) -> dict[str, Any]:
        """Return the facts written so far, with the facts `MISSING` and `NO_HEAD` if rows are missing or unproved."""
        self._read()
        lost = {MISSING: self.known.get(MISSING, 0) + self._missing} if self._missing else {}
        return self.known | lost | ({NO_HEAD: True} if self._no_head else {})

    def entries(self) -> list[Entry]:
        """Return the entries that have been written since the last call."""
        return list(self.stream())

    def stream(self) -> Iterator[Entry]:
        """Yield the entries since the last call, verified one by one. Missing rows are detected at the end."""
        entries, self._entries = self._entries, []
        yield from entries
        yield from self._rows()

    def _read(self) -> None:
        """Read the rows that have been written since the last call, and keep their entries."""
        self._entries += self._rows()

    def _rows(self) -> Iterator[Entry]:
        """Read and verify the rows written since the last call. Keep the facts, and yield the entries."""
        with _reading(self.path):
            head = written(self.path)  # before the rows, which it must not exceed
            complete = self._chain.number or self._database.execute(TABLES).fetchone()
            rows = self._database.execute(ROWS, {"last": self._chain.number}) if complete else ()
            for number, *row, chain in rows:
                if self._chain.extended(row) != (number, *row, chain):
                    raise _damaged(self.path, f"row {self._chain.number:,} is not the row that was written")
                if head is not None and number == head.number and chain != head.digest:
                    raise _damaged(self.path, f"row {number:,} is not the last row that was written")
                round, time, kind, name, node, data = row
                if kind is None and name == SAVED:
                    self._complete, self._saved = True, True
                elif kind is None:
                    self.known[name] = json.loads(data)  # a job without a limit or deadline has NaN
                elif math.isfinite(time):
                    self._begun = True
                    yield Entry(round, time, kind, name, node, decoded(data, _DECODER))
                else:
                    raise _damaged(self.path, f"the time of row {number:,} is {time}")
            self._no_head = head is None and not self._saved and self._begun
            self._missing = 0 if head is None else max(0, head.number - self._chain.number)
            if head is not None and self._missing and head.same_boot:
                raise _damaged(self.path, f"the last {self._missing:,} of {head.number:,} rows are missing")
            if not self._complete:
                raise _damaged(self.path, f"the rows after row {self._chain.number:,} are missing")

    def close(self) -> None:
        """Close the journal; may be called again."""
        self._database.close()


def _nan(name: str) -> float:
    """Return NaN, an unknown figure of an entry. Raise ValueError for Infinity: entries contain none."""
    if name != "NaN":
        raise ValueError(f"{name} is not a JSON number")
    return math.nan


_DECODER = json.JSONDecoder(parse_constant=_nan)


def of_damage(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about rows that are missing or unproved, which a continued journal keeps."""
    return {name: facts[name] for name in (MISSING, NO_HEAD) if name in facts}


def _damaged(path: Path, what: str) -> DamagedJournal:
    return DamagedJournal(f"the journal is damaged: {what}", where=str(path), hint="replay again")


def has_facts(path: Path) -> bool:
    """Return whether there is a journal with facts at `path`. The facts are written in one transaction.

    A replay that was killed before that transaction has done nothing. The rows after the first entry are not read.
    """
    if path.is_file() and path.stat().st_size:
        with contextlib.closing(Reader(path)) as reader:
            next(reader.stream(), None)
            if reader.known:
                return True
    if (head := written(path)) and head.same_boot:
        raise _damaged(path, f"all of its {head.number:,} rows are missing")
    return False


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts of a journal, complete or not. All rows are verified."""
    with contextlib.closing(Reader(path)) as reader:
        deque(reader.stream(), maxlen=0)
        return reader.facts()


def read(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    """Return the facts and the entries of a journal, complete or not."""
    with contextlib.closing(Reader(path)) as reader:
        return reader.facts(), reader.entries()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert read errors to an InputError that names the file."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, RecursionError) as error:
        hint = "the journal is damaged, or of another version of tracebed"
        raise DamagedJournal(f"the journal cannot be read: {error}", where=str(path), hint=hint) from error


def copy(path: Path, target: Path) -> Path:
    """Copy the journal at `path`, which may still be written to, to the new file `target`, and return `target`."""
    with _writing(target):
        _create_private(target)  # SQLite accepts an empty file
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("VACUUM INTO ?", [str(target)])
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as database:
            # Marks the copy as complete, so that a later loss of rows is detected.
            database.execute(ADD_FACT, _chain_of(database).extended(_fact(SAVED, value=True)))
    return target
