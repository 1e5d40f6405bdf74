"""The working folder of a replay, with its journal and the output of its jobs until the run is saved, and its signals.

Each replay creates its own folder next to its output (`real.partial-1a2b3c4d` for `real`), readable by its user only.
A marker file in the folder contains the name of the output, and is locked while the replay runs. The folder of a
replay that was killed stays until the user deletes it. `tracebed replay --resume` continues the replay in it, and
`tracebed replay --recover` makes a run from it.

SIGINT, SIGTERM and SIGHUP end a replay cleanly.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO

from tracebed.ground import system
from tracebed.ground.errors import InputError, TracebedError
from tracebed.orchestrator.replay.journal import DamagedJournal
from tracebed.orchestrator.runs.working_folders import MAGIC, MARKER, check_idle, working_folders

SECRET = "secret"  # File with the secret of a replay. It is deleted with the folder, and not part of the run.
SECRET_BYTES = 32


class WorkingFolder:
    """A working folder that this process has created and locked."""

    keep = False

    def __init__(self, output: Path, *, left: Path | None = None) -> None:
        """Create and lock a new folder for a replay to `output`, or lock the folder `left` by a killed replay."""
        output = Path(os.path.realpath(output))
        self.path = left or output.with_name(f"{output.name}.partial-{system.token_hex(4)}")
        try:
            if left is None:
                self._create(output)
            else:
                self._lock()
        except OSError as error:
            taken = isinstance(error, BlockingIOError)
            what = "another replay is writing to it" if taken else f"cannot be written: {error.strerror}"
            raise InputError(what, where=str(self.path), hint="choose another folder with -o") from error
        try:
            # If two replays start at the same time, at least one of them sees the lock of the other.
            check_idle(output, own=self.path)
            for other in working_folders(output):
                if other == self.path or not other.exists():
                    continue  # or the other replay has ended since
                todo = (
                    f"make a run of it with `tracebed replay --recover {other}`, continue it by --resume, or delete it"
                )
                warnings.warn(f"{other} remains from an earlier replay: {todo}", stacklevel=2)
        except BaseException:
            if left is None:
                self.remove()
            self.close()
            raise

    def _create(self, output: Path) -> None:
        self.path.mkdir(mode=0o700)
        self._made = self.path.lstat()
        with _create_private(self.path / SECRET) as file:
            file.write(system.token_hex(SECRET_BYTES) + "\n")
        unlocked = self.path / f".{MARKER}"
        self._marker = _create_private(unlocked)
        self._marker.write(json.dumps({"schema": MAGIC, "output": output.name}) + "\n")
        self._marker.flush()
        fcntl.flock(self._marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(self.path / MARKER)

    def _lock(self) -> None:
        self.keep = True
        self._made = self.path.lstat()
        self._marker = (self.path / MARKER).open("r+", encoding="utf-8")
        fcntl.flock(self._marker, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def secret(self) -> bytes:
        """The secret from which the keys of connections are derived. Ranks that still run have the keys."""
        path = self.path / SECRET
        try:
            secret = bytes.fromhex(path.read_text(encoding="ascii"))
            if len(secret) != SECRET_BYTES:
                raise ValueError(f"it has {len(secret)} bytes instead of {SECRET_BYTES}")
            return secret
        except (OSError, ValueError) as error:
            what = f"the secret of the replay cannot be read: {getattr(error, 'strerror', None) or error}"
            raise InputError(what, where=str(path)) from error

    def remove(self) -> None:
        """Remove the folder and its content, unless the folder has been replaced by another one."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._made, self.path.lstat()):
                try:
                    shutil.rmtree(self.path)
                except OSError as error:
                    warnings.warn(f"{self.path} cannot be removed: {error.strerror}", stacklevel=2)

    def close(self) -> None:
        """Release the lock; may be called again."""
        self._marker.close()


@contextlib.contextmanager
def working_folder(output: Path, left: Path | None = None, *, hint: str) -> Iterator[WorkingFolder]:
    """Create the working folder of a replay, or open the folder `left` by a killed replay to `output`.

    If the replay fails after jobs may have run, the folder is kept, and the error has the next command as its hint,
    with the folder for `{}` in `hint`, unless the journal is damaged.
    """
    folder = WorkingFolder(output, left=left)
    try:
        yield folder
    except BaseException as error:
        if not folder.keep:
            folder.remove()
        elif isinstance(error, DamagedJournal):
            pass  # the next command would find the same damage
        elif isinstance(error, TracebedError):
            error.hint = "; ".join(filter(None, (error.hint, hint.format(folder.path))))
        else:
            error.add_note(hint.format(folder.path))
        raise
    finally:
        folder.close()


def folder_to_resume(output: Path) -> Path | None:
    """Return the working folder of the newest replay to `output` that was killed. Warn if there is no such folder."""
    if left := working_folders(output):
        return left[-1]
    warnings.warn(f"no killed replay to {output} is found: the replay starts from the beginning", stacklevel=3)
    return None


def _create_private(path: Path) -> IO[str]:
    """Create a text file that only its owner can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")


class Signals:
    """The signals received since the start of a replay."""

    def __init__(self) -> None:
        self.received: list[str] = []  # names, in order of arrival
        self._interruptible = False
        self._notify: Callable[[str], None] | None = None

    def notify(self, interrupt: Callable[[str], None]) -> None:
        """Call `interrupt` with the name of each past and future signal. It must be safe in a signal handler."""
        self._notify = interrupt
        for name in self.received:
            interrupt(name)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise KeyboardInterrupt at the first signal, if it arrived before the block or arrives in the block."""
        self._interruptible = True
        try:
            if self.received:
                raise KeyboardInterrupt
            yield
        finally:
            self._interruptible = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        system.current().signaled(lambda: self._receive(number))

    def _receive(self, number: int) -> None:
        self.received.append(signal.Signals(number).name)
        if self._notify:
            self._notify(self.received[-1])
        if self._interruptible and len(self.received) == 1:
            raise KeyboardInterrupt


@contextlib.contextmanager
def collected_signals() -> Iterator[Signals]:
    """Collect SIGINT, SIGTERM and SIGHUP while the block runs.

    If SIGHUP is ignored, as under `nohup`, it stays ignored. Outside the main thread, Python cannot install signal
    handlers, so signals are not collected there.
    """
    signals = Signals()
    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, signals._handle) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
