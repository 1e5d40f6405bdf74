"""The checksums of a journal, and the number of the rows that were written to it.

The checksum of a row is the SHA-256 of the checksum before and of the row. A row that was changed, removed, inserted or
moved therefore breaks the chain, unless all later checksums are computed again. The file of the head, beside the
journal, contains the last row of the chain. It distinguishes a journal that lost its last rows from a complete one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.benchmarks.lines import encoded
from tracebed.ground import system as world
from tracebed.ground.errors import InputError

SUFFIX = "-head"
"""Suffix of the file of the head, after the name of the journal."""
MAGIC = "tracebed-head/1"


class DamagedJournal(InputError):
    """A damaged journal, which neither continues nor becomes a run."""


class Chain:
    """The chain of the rows up to a certain one.

    Args:
        number: number of the last row; 0: there is no row.
        digest: its checksum.
    """

    def __init__(self, number: int = 0, digest: bytes = b"") -> None:
        """Continue after the row `number`."""
        self.number, self.digest = number, digest

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
    boot: str | None
    """Identity of the kernel that ran then; None: unknown."""

    @property
    def same_boot(self) -> bool:
        """Whether the machine has not been restarted since. A row of this boot can be lost by damage only."""
        return self.boot is not None and self.boot == world.current().boot_id()


class Head:
    """The file of the head of a journal that is being written. Only its owner can read it.

    A row is committed before the head is written. If the writer is killed, the journal may be ahead of the head.

    Raises:
        OSError: the file cannot be written. All methods raise this error.
    """

    def __init__(self, journal: Path) -> None:
        """Open the file, or create it."""
        self._file: int | None = os.open(head_path(journal), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._boot = world.current().boot_id() or ""

    def write(self, chain: Chain) -> None:
        """Replace the content of the file in one system call. The length is constant."""
        if self._file is not None:
            line = f"{MAGIC} {chain.number:020d} {chain.digest.hex()} {self._boot}\n"
            world.current().pwrite(self._file, line.encode(), 0)

    def close(self) -> None:
        """Close the file; may be called again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def head_path(journal: Path) -> Path:
    """Return the file of the head of `journal`."""
    return journal.with_name(journal.name + SUFFIX)


def written(journal: Path) -> LastRow | None:
    """Return the last row that was written to `journal`; None: there is no head, as in the folder of a run.

    Raises:
        InputError: the file of the head is damaged.
    """
    path = head_path(journal)
    try:
        if not (text := path.read_bytes()):
            return None  # the writer was killed before its first row
        magic, number, digest, *boot = text.decode("ascii").split()
        if magic != MAGIC:
            raise ValueError(f"{magic} is not {MAGIC}")
        return LastRow(int(number), bytes.fromhex(digest), boot[0] if boot else None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        what = f"the head of the journal is damaged: {error}"
        hint = "delete the file to use the journal without it: the run has a warning then"
        raise DamagedJournal(what, where=str(path), hint=hint) from error
