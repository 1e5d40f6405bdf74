"""The use of groups of nodes: which groups are in use by processes of this user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import weakref
from pathlib import Path

from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.agent.spool import make_spool
from tracebed.orchestrator.testbeds.nodes import Group


class GroupLock:
    """The use of a group by this process, as a lock that the kernel releases when the process ends.

    The mark of the group identifies it on this machine.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._lock: weakref.finalize[[int], GroupLock] | None = None  # closes the file of the lock

    def lock_shared(self) -> None:
        """Use the nodes beside other processes. While another process takes the nodes down, wait for its end."""
        fcntl.flock(self._open(), fcntl.LOCK_SH)

    def lock_exclusive(self) -> bool:
        """Use the nodes alone, to take them down. Return False, without the lock, if another process uses them."""
        try:
            fcntl.flock(self._open(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """End the use. May be called repeatedly."""
        if self._lock is not None:
            self._lock()
            self._lock = None

    def in_use(self, what: str) -> TestbedError:
        """Return the error for nodes that another process uses."""
        hint = "run `tracebed nodes down` with the inventory after the other process has ended"
        return TestbedError(f"{what}: another process uses the nodes", where=f"group {self._group.name}", hint=hint)

    def _open(self) -> int:
        if self._lock is None:
            mark = f"{self._group.provider}\n{self._group.mark or self._group.name}"
            name = f"{hashlib.sha256(mark.encode()).hexdigest()[:16]}.lock"
            self._file = os.open(_folder() / name, os.O_RDWR | os.O_CREAT, 0o600)
            self._lock = weakref.finalize(self, os.close, self._file)
        return self._file


def _folder() -> Path:
    """Return the folder for locks, which is the same for all processes of this user."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}")
    usable = runtime.is_dir() and os.access(runtime, os.W_OK)
    folder = runtime / "tracebed" if usable else Path(tempfile.gettempdir()) / f"tracebed-{os.geteuid()}"
    make_spool(folder)
    return folder
