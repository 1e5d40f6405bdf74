"""Bound of the expansion of a compressed file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from tracebed.ground.errors import InputError

FREE_BYTES = 2**26
"""Content of a compressed file that is always accepted, in bytes."""
MAX_RATIO = 100
"""Largest accepted ratio of the content to the compressed file. Logs have 5 to 20, gzip reaches 1,000."""
MAX_BYTES = 2**32
"""Largest accepted content of a compressed file, in bytes. A plain file may be larger."""


class Bounded(io.RawIOBase):
    """The content of a compressed file, read as far as the expansion is plausible.

    Args:
        inner: the decompressed content.
        used: returns the number of compressed bytes read so far.
        where: the file, for messages.
    """

    def __init__(self, inner: Any, used: Callable[[], int], where: str) -> None:
        super().__init__()
        self._inner, self._used, self._where = inner, used, where
        self._size = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer` and return the number of bytes, 0 at the end.

        Raises:
            InputError: the content is larger than `MAX_BYTES`, or than `FREE_BYTES` and `MAX_RATIO` times what was
                read of the file.
        """
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        self._size += len(data)
        if self._size > min(MAX_BYTES, max(FREE_BYTES, MAX_RATIO * self._used())):
            size = f"more than {self._size // 2**20:,} MiB, {self._size // max(1, self._used()):,} times the file"
            hint = "if it is a log, decompress it, and give the plain file"
            raise InputError(f"expands to {size}", where=self._where, hint=hint)
        return len(data)

    def readall(self) -> bytes:
        """Return the rest of the content."""
        return b"".join(iter(lambda: self.read(2**22), b""))
