"""The table of a node in shared memory: which process holds which CPUs.

The table is a file under /dev/shm, mapped by every process that uses it. Numbers have the byte order of the machine:

    header     magic (8 bytes), bytes of a mask, slots, current bank (4 bytes each); 32 bytes in all
    posts      for each slot, the number of changes that were posted to its process (8 bytes)
    banks      two copies of the entries: Adler-32 of what follows in use, number of entries (4 bytes each), the mask of
               the node, then the entries: slot, PID, registered, 0 (4 bytes each), start (8 bytes), three masks

All changes are transactions. A transaction holds a lock of the kernel, which ends with its process, and writes the bank
that is not current, then switches banks. So a process that dies in the middle of a transaction changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tracebed.ground import system
from tracebed.ground.errors import TestbedError

FOLDER: Final = Path("/dev/shm")
SLOTS: Final = 1024  # number of processes for which a table has room
LOCK_S = 2.0  # Longest wait for the lock, s. A transaction takes less than a millisecond.
PAUSE_S = 0.0001  # pause between two attempts to lock, s

_MAGIC = b"tb-drom1"
_HEADER = struct.Struct("=8sIII12x")
_CURRENT = 16  # offset of the current bank, bytes
_BANK = struct.Struct("=II")
_POST = struct.Struct("=q")
_CHECKSUM_BYTES = 4
# Excludes the threads of this process from each other: a lock of the kernel belongs to the whole process.
_lock = threading.RLock()


def bits(cpus: Iterable[int]) -> int:
    """Return the mask of CPUs: bit i is CPU i."""
    mask = 0
    for cpu in cpus:
        mask |= 1 << cpu
    return mask


def cpus_of(mask: int) -> tuple[int, ...]:
    """Return the CPUs of a mask, ascending."""
    return tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


class TableLostError(TestbedError):
    """The table is missing or damaged, or its lock is held for too long."""

    def __init__(self, path: Path, what: str) -> None:
        hint = "end the processes that use the table, remove its file, and start the agent again"
        super().__init__(f"the table of CPUs {what}", where=str(path), hint=hint)


class TableEntry:
    """A process and its CPUs, as masks. No CPU is in the masks of the same name of two processes."""

    __slots__ = ("held", "pid", "registered", "slot", "started", "taken", "target")

    def __init__(
        self, slot: int, pid: int, registered: bool, started: int, held: int = 0, target: int = 0, taken: int = 0
    ) -> None:
        self.slot = slot  # index of the post of the process
        self.pid = pid
        self.registered = registered  # by the process itself; False: its CPUs are reserved for it and its children
        self.started = started  # in clock ticks since boot: a later process may have the same PID
        self.held = held  # CPUs that the process may use now
        self.target = target  # CPUs that the process is to hold, once it and the holders before it have polled
        self.taken = taken  # CPUs that return when their holders end: the process was the first to lose each

    @property
    def pending(self) -> bool:
        """Whether a change is pending."""
        return self.held != self.target

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return start_of(self.pid) == self.started


class Transaction:
    """The entries of a table under its lock."""

    def __init__(self, node: int, entries: dict[int, TableEntry]) -> None:
        self.node, self.entries = node, entries  # by PID
        self.posted: set[int] = set()  # slots of the processes that are to poll

    def add(self, pid: int, *, registered: bool) -> TableEntry | None:
        """Add a process, and return its entry; None: the process has ended, or the table is full."""
        used = {entry.slot for entry in self.entries.values()}
        slot = next((slot for slot in range(SLOTS) if slot not in used), None)
        started = start_of(pid)
        if slot is None or started is None:
            return None
        self.entries[pid] = TableEntry(slot, pid, registered, started)
        return self.entries[pid]

    def others(self, entry: TableEntry | None) -> list[TableEntry]:
        """Return the other processes."""
        return [other for other in self.entries.values() if other is not entry]


class NodeTable:
    """The table in a file."""

    def __init__(self, path: Path) -> None:
        """Map the file.

        Raises:
            TableLostError: the file is missing, is not a table, or belongs to another user.
        """
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise TableLostError(path, f"cannot be opened: {error.strerror}") from error
        try:
            self._map, self._width = self._mapped()
        except BaseException:
            os.close(self._file)
            raise
        self._entry = _entry(self._width)
        self._size = _size(self._width)
        first = _HEADER.size + 8 * SLOTS
        self._banks = first, first + (self._size - first) // 2  # offsets, bytes
        self._posts = memoryview(self._map)[_HEADER.size : _HEADER.size + 8 * SLOTS].cast("Q")

    def _mapped(self) -> tuple[mmap.mmap, int]:
        """Return the mapped file and the bytes of a mask."""
        facts = os.fstat(self._file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise TableLostError(self.path, "does not belong to this user")
        try:
            mapped = mmap.mmap(self._file, 0)
            magic, width, slots, _ = _HEADER.unpack_from(mapped)
        except (ValueError, struct.error) as error:
            raise TableLostError(self.path, "is damaged") from error
        if magic != _MAGIC or slots != SLOTS or facts.st_size != _size(width):
            raise TableLostError(self.path, "is damaged")
        return mapped, width

    @classmethod
    def create(cls, path: Path, cpus: Iterable[int]) -> NodeTable:
        """Create the table of a node with `cpus`, unless it exists, and open it.

        Raises:
            TableLostError: the table cannot be created or opened.
        """
        node = bits(cpus)
        width = max(1, -(-node.bit_length() // 8))
        part = path.with_name(f".{path.name}.{system.token_hex(8)}")
        try:
            with open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(_HEADER.pack(_MAGIC, width, SLOTS, 0))
                file.seek(_HEADER.size + 8 * SLOTS)
                file.write(_bank(node.to_bytes(width, "little"), 0))
                file.truncate(_size(width))
            with contextlib.suppress(FileExistsError):
                os.link(part, path)  # complete, or not at all
            part.unlink()
        except OSError as error:
            part.unlink(missing_ok=True)
            raise TableLostError(path, f"cannot be created: {error.strerror}") from error
        return cls(path)

    @contextlib.contextmanager
    def transaction(self, *, changes: bool = True) -> Iterator[Transaction]:
        """Yield the entries under the lock, and store them at the end unless an exception is raised.

        Without `changes`, they are not stored. A table that was removed, is damaged, or stays locked is a
        TableLostError.
        """
        with _lock:
            self._acquire()
            try:
                transaction = self._load()
                yield transaction
                if changes:
                    self._store(transaction)
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def posts(self, slot: int) -> int:
        """Return the number of changes that were posted to a process, without the lock; -1: the file was truncated."""
        data = os.pread(self._file, _POST.size, _HEADER.size + _POST.size * slot)  # the map could raise SIGBUS
        return int(_POST.unpack(data)[0]) if len(data) == _POST.size else -1

    def mark(self) -> bytes:
        """Return bytes that differ if the entries differ, without the lock: the current bank, and checksums of both."""
        places = (_CURRENT, *self._banks)
        return b"".join(os.pread(self._file, _CHECKSUM_BYTES, place) for place in places)

    def close(self) -> None:
        """Unmap the file. The table cannot be used afterwards."""
        self._posts.release()
        self._map.close()
        os.close(self._file)

    def _acquire(self) -> None:
        until = system.monotonic() + LOCK_S
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if system.monotonic() > until:
                    raise TableLostError(self.path, f"is locked for more than {LOCK_S:g} s") from error
            system.sleep(PAUSE_S)
        facts = os.fstat(self._file)
        if not facts.st_nlink or facts.st_size != self._size:  # access to the map would raise SIGBUS
            fcntl.lockf(self._file, fcntl.LOCK_UN)
            raise TableLostError(self.path, "is damaged" if facts.st_nlink else "was removed")

    def _load(self) -> Transaction:
        (current,) = struct.unpack_from("=I", self._map, _CURRENT)
        begin = self._banks[current & 1]
        checksum, count = _BANK.unpack_from(self._map, begin)
        begin += _BANK.size
        end = begin + self._width + min(count, SLOTS) * self._entry.size
        data = self._map[begin:end]
        if current > 1 or count > SLOTS or zlib.adler32(data) != checksum:
            raise TableLostError(self.path, "is damaged")
        entries, mask = {}, int.from_bytes
        for slot, pid, registered, started, held, target, taken in self._entry.iter_unpack(data[self._width :]):
            masks = mask(held, "little"), mask(target, "little"), mask(taken, "little")
            entries[pid] = TableEntry(slot, pid, bool(registered), started, *masks)
        return Transaction(int.from_bytes(data[: self._width], "little"), entries)

    def _store(self, transaction: Transaction) -> None:
        (current,) = struct.unpack_from("=I", self._map, _CURRENT)
        width, parts = self._width, [transaction.node.to_bytes(self._width, "little")]
        for entry in transaction.entries.values():
            held, target = entry.held.to_bytes(width, "little"), entry.target.to_bytes(width, "little")
            taken = entry.taken.to_bytes(width, "little")
            parts.append(self._entry.pack(entry.slot, entry.pid, entry.registered, entry.started, held, target, taken))
        bank = _bank(b"".join(parts), len(transaction.entries))
        begin = self._banks[1 - current]
        self._map[begin : begin + len(bank)] = bank
        struct.pack_into("=I", self._map, _CURRENT, 1 - current)
        for slot in transaction.posted:  # after the switch, so that a process that polls finds the change
            self._posts[slot] += 1


def start_of(pid: int) -> int | None:
    """Return the start of a process, in clock ticks since boot; None: it has ended."""
    return system.current().start_of(pid)


@cache
def _entry(width: int) -> struct.Struct:
    return struct.Struct("=Iii4xQ" + f"{width}s" * 3)


def _bank(data: bytes, count: int) -> bytes:
    return _BANK.pack(zlib.adler32(data), count) + data


def _size(width: int) -> int:
    """Return the size of a table whose masks have `width` bytes."""
    return _HEADER.size + 8 * SLOTS + 2 * (_BANK.size + width + SLOTS * _entry(width).size)
