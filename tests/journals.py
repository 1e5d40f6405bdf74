"""Changes of journals, with and without their checksums."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from tracebed.orchestrator.replay.journal import ROWS, Chain, head_path


def change(path: Path, *statements: str) -> int:
    """Execute SQL statements on a journal, as an editor of its file. Return the number of changed rows."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        return sum(database.execute(statement).rowcount for statement in statements)


def forge(path: Path, *statements: str) -> int:
    """Execute SQL statements on a journal and compute its checksums again, so that only its content tells the change.

    Return the number of changed rows.
    """
    changed = change(path, *statements)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        rows = database.execute(ROWS, {"last": 0}).fetchall()
        database.execute("DELETE FROM entries")
        database.execute("DELETE FROM facts")
        chain = Chain()
        for row in [chain.extended(row[1:-1]) for row in rows]:
            values = row if row[3] is not None else (row[0], row[4], row[6], row[7])
            table = "entries" if row[3] is not None else "facts"
            database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
    head_path(path).unlink(missing_ok=True)
    return changed
