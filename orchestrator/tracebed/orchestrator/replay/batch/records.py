"""The records that the jobs of a replay write: `NAME.ID.start` and `NAME.ID.end`, in a folder that all
nodes see. A submission that was accepted twice has two jobs of one name, which must not overwrite each other's records.

Slurm records times in whole seconds and purges old jobs. The records have nanoseconds and stay until the run is saved.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.replay.batch.base import JobRequest

SCRIPT = Path(__file__).with_name("job.sh")
NS = 1e-9


@dataclass(frozen=True)
class OwnRecord:
    """The record of a job, written by the job itself. Times are s since 1970, by the clock of its first node."""

    id: str
    start: float
    end: float | None = None  # end of the job; None: it has not ended, or was killed
    completed: bool = False  # whether the job reached its planned end
    restarts: int = 0  # number of times that the batch system started the job again
    launched: float | None = None  # Time at which the ranks of the job began to work. None: unknown.


@dataclass(frozen=True)
class AppliedSize:
    """The last size that a malleable job applied. Times are s since 1970, by the clock of its first node."""

    request: int  # number of the request, as in `JobRecords.write_size`
    seen: float  # time of the malleability point at which the job read the request
    applied: float  # time at which the job worked on its new nodes, and the ranks on other nodes had ended


class JobRecords:
    """The script and the records of the jobs of a replay, in a folder that all nodes see and only the user can read."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        """Create the folder and its script, if they are missing. `shared`: jobs of other users write records, too."""
        self.folder = folder
        self.script = folder / "job.sh"
        self._ended: dict[str, OwnRecord] = {}
        self._mode = 0o644 if shared else 0o600
        folder.mkdir(mode=0o700, exist_ok=True)
        if not self.script.exists():
            shutil.copyfile(SCRIPT, self.script)
            self.script.chmod(0o755 if shared else 0o700)
        if shared:
            folder.chmod(0o1777)  # as /tmp: a user cannot replace the files of another one

    def request(
        self,
        name: str,
        nodes: int,
        run_s: float,
        limit_s: float | None,
        *,
        held: bool = False,
        grain_s: float | None = None,
        program: Sequence[str] = (),
    ) -> JobRequest:
        """Return the request of a job. The work of a malleable job takes `run_s` (wall s) at the rate 1.

        A malleable job has a malleability point every `grain_s` of wall time. Its `program` is the command of the shell
        that does the work (`job.sh`), the name of the application, and its state in MiB. If empty, the work is
        emulated.
        """
        grain = () if grain_s is None else (str(round(grain_s / NS)), *program)
        arguments = (str(self.folder), name, str(round(run_s / NS)), *grain)
        return JobRequest(name, nodes, limit_s, self.script, arguments, self.folder / f"{name}.out", held)

    def write_size(self, name: str, request: int, rate: float, nodes: Sequence[str]) -> None:
        """Request a malleable job to work on `nodes` at a rate. The number `request` must be new."""
        path, new = self.folder / f"{name}.size", self.folder / f".{name}.{request}.size"
        try:
            new.unlink(missing_ok=True)
            with self._created(new) as file:
                file.write(f"{request} {max(1, round(rate * 1e6))} {' '.join(nodes)}\n")
            new.replace(path)
        except OSError as error:
            raise TestbedError(f"the size of {name} cannot be written: {error.strerror}", transient=True) from error

    def _created(self, path: Path) -> TextIO:
        """Create a file for writing. It must not exist: in a shared folder, it might be a link of another user."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._mode)
        os.fchmod(descriptor, self._mode)
        return os.fdopen(descriptor, "w", encoding="utf-8")

    @contextlib.contextmanager
    def kept_running(self, name: str, id: str) -> Iterator[None]:
        """Keep a malleable job in the batch system while the block runs, even if its work ends.

        The job records its end, then looks for the file. This method makes the file, then looks for the record. A job
        that has ended is a TestbedError.
        """
        path = self.folder / f"{name}.busy"
        with contextlib.suppress(FileExistsError):
            self._created(path).close()
        try:
            if _read(self.folder / f"{name}.{id}.end") is not None:
                raise TestbedError(f"the job {name} has ended", transient=True)
            yield
        finally:
            path.unlink(missing_ok=True)

    def requested(self, name: str) -> int:
        """Return the number of the last request of `write_size`; 0: there was no request."""
        return self.requested_size(name)[0]

    def requested_size(self, name: str) -> tuple[int, tuple[str, ...]]:
        """Return the number of the last request of `write_size` and its nodes; 0: there was no request."""
        try:
            request, _, *nodes = (self.folder / f"{name}.size").read_text().split()
            return int(request), tuple(nodes)
        except (OSError, ValueError):
            return 0, ()

    def applied(self, name: str, id: str) -> AppliedSize | None:
        """Return the last size that a job applied; None: no size."""
        try:
            fields = dict(
                line.split("=", 1) for line in (self.folder / f"{name}.{id}.resized").read_text().splitlines()
            )
            return AppliedSize(int(fields["request"]), int(fields["seen"]) * NS, int(fields["applied"]) * NS)
        except (OSError, ValueError, KeyError):
            return None

    def read(self, name: str, id: str) -> OwnRecord | None:
        """Return the record of the job with a name and an ID, or None if the job has not started."""
        stem = f"{name}.{id}"
        if stem in self._ended:
            return self._ended[stem]
        end, start = (_read(self.folder / f"{stem}.{kind}") for kind in ("end", "start"))
        if end is None or (start is not None and start.restarts > end.restarts):
            return start  # the job has not ended, or the batch system has started it again since
        self._ended[stem] = end
        return end

    def find(self, name: str) -> str | None:
        """Return the ID of the first job of a name that has a record, or None if there is no such job."""
        paths = (path for path in self.folder.iterdir() if path.suffix in (".start", ".end"))
        ids = {path.stem.removeprefix(f"{name}.") for path in paths if path.stem.startswith(f"{name}.")}
        return min(ids, key=lambda id: (len(id), id), default=None)


def _read(path: Path) -> OwnRecord | None:
    """Return the record in a file, or None if it is missing, incomplete or damaged, as on a full disk."""
    try:
        fields = dict(line.split("=", 1) for line in path.read_text(errors="replace").splitlines())
        if path.suffix == ".end" and not fields.keys() >= {"end", "status"}:
            return None
        return OwnRecord(
            id=fields["job"],
            start=int(fields["start"]) * NS,
            end=int(fields["end"]) * NS if "end" in fields else None,
            completed=fields.get("status") == "completed",
            restarts=int(fields["restarts"]),
            launched=int(fields["launched"]) * NS if "launched" in fields else None,
        )
    except (OSError, ValueError, KeyError):
        return None
