"""The records that the jobs of a replay write: `NAME.ID.start` and `NAME.ID.end`, in a folder that all
nodes see. A submission that was accepted twice has two jobs of one name, which must not overwrite each other's records.

Slurm records times in whole seconds and purges old jobs. The records have nanoseconds and stay until the run is saved.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tracebed.orchestrator.batch.base import JobRequest

SCRIPT = Path(__file__).with_name("job.sh")
NS = 1e-9


@dataclass(frozen=True)
class OwnRecord:
    """The record of a job, written by the job itself. Times are s since 1970, by the clock of its first node."""

    id: str
    start: float
    end: float | None = None
    """End of the job; None: it has not ended, or was killed."""
    completed: bool = False
    """Whether the job reached its planned end."""
    restarts: int = 0
    """Number of times that the batch system started the job again."""


class JobRecords:
    """The folder of the script and the records of the jobs of a replay.

    Args:
        folder: a folder that all nodes see, readable by the user only.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder and its script, if they are missing."""
        self.folder = folder
        self.script = folder / "job.sh"
        self._ended: dict[str, OwnRecord] = {}
        folder.mkdir(mode=0o700, exist_ok=True)
        if not self.script.exists():
            shutil.copyfile(SCRIPT, self.script)
            self.script.chmod(0o700)

    def request(self, name: str, nodes: int, run_s: float, limit_s: float | None) -> JobRequest:
        """Return the request of a job that runs for `run_s` wall seconds."""
        arguments = (str(self.folder), name, str(round(run_s / NS)))
        return JobRequest(name, nodes, limit_s, self.script, arguments, self.folder / f"{name}.out")

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

    def output(self, name: str) -> str:
        """Return the last line that a job printed; empty if there are no lines."""
        try:
            lines = (self.folder / f"{name}.out").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


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
        )
    except (OSError, ValueError, KeyError):
        return None
