"""Files that a user names: opened without waiting for ever, and read up to a bound.

Every such file is opened here, so that a device, a socket, a silent pipe or a log in place of a settings file costs
one message, not the memory or the patience of the user. Large logs have their own bounds: `formats.tools.files`.
"""

from __future__ import annotations

import io
import json
import os
import select
import stat
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tracebed.ground import system
from tracebed.ground.errors import InputError

MAX_TEXT = 2**24
"""Largest accepted text file in bytes: settings, lists of ids, files of other simulators' runs in JSON."""
MAX_RUN_JSON = 2**26
"""Largest accepted `run.json` in bytes. A run may have half a million nodes with unrelated names."""
WRITER_S = 10.0
"""Longest wait for a program that opens a pipe to write, wall s."""
SILENCE_S = 600.0
"""Longest wait for the next bytes of a pipe, wall s."""
DEEPEST = 100
"""Deepest accepted nesting of JSON. Later recursions over the value must not exceed that of Python."""
KINDS = {stat.S_ISCHR: "device", stat.S_ISBLK: "device", stat.S_ISSOCK: "socket", stat.S_ISDIR: "folder"}
"""Test of a file mode -> the kind of file that cannot be read."""


def open_file(path: Path, what: str = "", *, hint: str = "check the path") -> BinaryIO:
    """Open a regular file or a pipe (`<(...)`, `/dev/stdin`) for reading. `what` is the kind of file, for messages.

    Raises InputError if the file does not exist, cannot be read, or is a device, socket or folder. A read from a pipe
    raises it too, if no program opens the pipe within `WRITER_S` or writes within `SILENCE_S`.
    """
    try:
        _check_kind(path, path.stat().st_mode, hint)  # before the open: that of a device may have effects
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: the name contains NUL
        if isinstance(error, FileNotFoundError) and not what:
            raise InputError("no such file", where=str(path), hint=hint) from None
        reason = error.strerror if isinstance(error, OSError) else error
        failed = f"cannot read the {what}" if what else "cannot be read"
        raise InputError(f"{failed}: {reason}", where=str(path), hint=hint) from None
    try:
        mode = os.fstat(descriptor).st_mode
        _check_kind(path, mode, hint)
    except BaseException:
        os.close(descriptor)
        raise
    if stat.S_ISFIFO(mode):
        return io.BufferedReader(_Pipe(descriptor, path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, what: str, *, hint: str = "check the path", most: int = MAX_TEXT) -> bytes:
    """Return the content of a small file. Raises InputError as `open_file`, and if it is larger than `most` bytes."""
    with open_file(path, what, hint=hint) as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise InputError(f"cannot read the {what}: {error.strerror}", where=str(path), hint=hint) from None
    if len(data) > most:
        raise InputError(f"is larger than {most / 2**20:g} MiB, too large for a {what}", where=str(path), hint=hint)
    return data


def read_text(file: Traversable, what: str, *, hint: str = "check the path", most: int = MAX_TEXT) -> str:
    """Return a small UTF-8 text without byte order mark. Raises InputError as `read_file`, or if it is not UTF-8."""
    data = read_file(file, what, hint=hint, most=most) if isinstance(file, Path) else file.read_bytes()
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"cannot read the {what}: it is not UTF-8 text"
        raise InputError(what, where=f"{file}:{line}", hint=hint) from None


def read_json(path: Path, what: str, *, hint: str = "check the path", most: int = MAX_TEXT) -> Any:
    """Return the content of a small JSON file. Raises InputError as `read_text` and `parse_json`."""
    return parse_json(read_text(path, what, hint=hint, most=most), where=str(path), hint=hint)


def parse_json(text: str, *, where: str, hint: str) -> Any:
    """Return the value of a JSON text.

    Raises InputError if the text is not JSON (NaN, Infinity, and numbers beyond a float are not), repeats a key, or is
    nested more than `DEEPEST` deep.
    """
    try:
        value = json.loads(text, parse_constant=not_json, parse_float=_number, object_pairs_hook=_unique)
    except RecursionError:
        raise InputError("is nested too deeply", where=where, hint=hint) from None
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", where=f"{where}:{error.lineno}", hint=hint) from None
    except ValueError as error:  # also a whole number of thousands of digits
        raise InputError(f"is not JSON: {str(error).splitlines()[0][:200]}", where=where, hint=hint) from None
    if is_deeper(value, DEEPEST):
        raise InputError(f"is nested more than {DEEPEST} deep", where=where, hint=hint)
    return value


def is_deeper(value: Any, most: int) -> bool:
    """Return whether a value of JSON has an element within more than `most` mappings and lists."""
    level = [value]
    for _ in range(most + 1):
        containers = (
            part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)
        )
        level = [part for container in containers for part in container]
    return bool(level)


def _check_kind(path: Path, mode: int, hint: str) -> None:
    for is_kind, kind in KINDS.items():
        if is_kind(mode):
            raise InputError(f"is a {kind}, not a file", where=str(path), hint=hint)


def not_json(name: str) -> NoReturn:
    """Raise ValueError for NaN or Infinity: `parse_constant` of `json.loads`."""
    raise ValueError(f"{name} is not a JSON number")


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), -float("inf")):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:40]!r} occurs twice")
    return mapping


class _Pipe(io.RawIOBase):
    """A pipe that is read as its writer writes, but not waited for without end."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__()
        self._descriptor, self._path = descriptor, path
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer` and return the number of bytes, 0 at the end. Raises InputError if no program writes."""
        start = system.monotonic()
        if not self._poll.poll(1000 * WRITER_S):
            try:
                ends = not os.readv(self._descriptor, [buffer])
            except BlockingIOError:  # a program has the pipe open, but is silent
                ends = False
            if ends:
                self._refuse(f"is a pipe to which no program writes: none opened it within {WRITER_S:g} s")
            if not self._poll.poll(1000 * max(0.0, start + SILENCE_S - system.monotonic())):
                self._refuse(f"is a pipe without data for {SILENCE_S:g} s")
        return os.readv(self._descriptor, [buffer])

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(what, where=str(self._path), hint="start the writing program first, or give a file")

    def close(self) -> None:
        """Close the pipe; may be called again."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()
