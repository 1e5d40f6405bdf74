"""Replays that are disturbed on purpose, and the checks that no job was lost or run twice."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import psutil

from tests.patience import GUARD_S
from tracebed.benchmarks.lines import decode
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.testbeds.agent import spool

PROGRAM = "from tracebed.cli import main; main()"


class Case:
    """A replay in an empty folder, as a command that can be killed and resumed. `inventory` is a text."""

    def __init__(self, folder: Path, work: Workload, inventory: str, *options: str) -> None:
        """Write the files of the case."""
        self.folder = folder
        write_workload(work, folder / "w.parquet")
        (folder / "i.yaml").write_text(inventory)
        self.options = ("--inventory", "i.yaml", "-o", "run", *options)
        self.commands: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, hook: str = "") -> subprocess.Popen[bytes]:
        """Start the replay. `hook`: Python code to run first in its process."""
        command = [sys.executable, "-c", hook + PROGRAM, "replay", "w.parquet", *self.options, *options]
        with (self.folder / "errors").open("ab") as errors:
            process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=errors)
        self.commands.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], status: int = 0) -> Run:
        """Wait for the end of the replay, and return its run."""
        assert process.wait(GUARD_S) == status, self.errors
        return Run.load(self.folder / "run")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the replayer with SIGKILL."""
        process.kill()
        process.wait()

    @property
    def errors(self) -> str:
        """What the replays have written to standard error."""
        return (self.folder / "errors").read_text()

    @property
    def working(self) -> list[Path]:
        """The working folders."""
        return sorted(self.folder.glob("run.partial-*"))

    def entries(self) -> list[Entry]:
        """Return the entries of the journal so far."""
        for folder in self.working:
            with contextlib.suppress(InputError):
                return journal.read(folder / JOURNAL)[1]
        return []

    def wait_until(self, process: subprocess.Popen[bytes], condition: Callable[[list[Entry]], object]) -> None:
        """Wait until the entries of the journal fulfill `condition`. Fail if the replay ends before."""
        deadline = time.monotonic() + GUARD_S
        while not condition(self.entries()):
            assert process.poll() is None, self.errors
            assert time.monotonic() < deadline, self.errors
            time.sleep(0.01)

    def agents(self) -> list[psutil.Process]:
        """Return the agents of the replay, in the order of their nodes."""
        facts = {}
        for folder in self.working:
            with contextlib.suppress(InputError):
                facts = journal.read(folder / JOURNAL)[0].get("agents", {})
        found = []
        for name in sorted(facts):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(facts[name]["pid"]))
        return found

    def end(self) -> None:
        """Kill all replayers, for a test that fails."""
        for process in self.commands:
            process.kill()
            process.wait()


def entries_of(folder: Path) -> list[Entry]:
    """Return the entries of the journal of the run in `folder`, which has ended."""
    return journal.read(folder / "run" / JOURNAL)[1]


def count(kind: str, least: int = 1) -> Callable[[list[Entry]], bool]:
    """Return a condition: the journal has at least `least` entries of a kind."""
    return lambda entries: sum(entry.kind == kind for entry in entries) >= least


def assert_every_job_ended_once(run: Run, entries: Iterable[Entry], *, states: Iterable[str] = ("completed",)) -> None:
    """Check the life of each job in the journal: started and requeued in turn, and ended exactly once."""
    lives: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.kind in ("submit", "start", "requeue", "end"):
            lives[entry.job or ""].append(entry.kind)
    assert set(lives) == set(run.jobs["job_id"])
    restarts = dict(zip(run.jobs["job_id"], run.jobs["restarts"], strict=True))
    for job, life in lives.items():
        assert life == ["submit", *["start", "requeue"] * restarts[job], "start", "end"], (job, life)
    assert set(run.jobs["state"]) <= set(states)


def assert_no_rank_ran_twice(spool: Path) -> None:
    """Check the records of the ranks: no two processes of a job ran on a node at the same time."""
    for file in spool.glob("job-*/*.heartbeat.jsonl"):
        spans: dict[int, list[float]] = {}
        for line in file.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # the last line of a rank that was killed may be incomplete
                record = decode(line)
                spans.setdefault(record["pid"], []).append(record["time"])
        order = sorted((min(times), max(times)) for times in spans.values())
        for (_, end), (start, _) in pairwise(order):
            assert end <= start, f"two processes at once in {file}"


def tables_of(folders: Iterable[str]) -> list[Path]:
    """Return the tables of CPUs in shared memory that belong to agents, given the private folders of the agents."""
    paths = [spool.table_path(Path(folder)) for folder in folders]
    return [table for path in paths for table in path.parent.glob(f"{path.name}*")]


KEEP = """
from tracebed.orchestrator.replay.folder import WorkingFolder
WorkingFolder.remove = lambda self: (self.close(), self.path.rename("kept"))
"""
"""Code for `Case.start`: the working folder is renamed to `kept` where it would be removed."""
