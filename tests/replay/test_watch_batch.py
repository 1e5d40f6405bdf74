"""The live view of a replay on a batch system, compared with the run that the replay saves."""

from __future__ import annotations

import math
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.replay.test_watch import TRACEBED, text_of
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import TestbedError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.batch import loop, session
from tracebed.orchestrator.replay.batch.base import JobObservation, JobRequest, Phase, Refused, SystemFacts
from tracebed.orchestrator.replay.batch.records import JobRecords
from tracebed.orchestrator.replay.batch.session import BatchOptions, replay
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.watching.batch_view import BatchView
from tracebed.orchestrator.watching.follower import view_of
from tracebed.orchestrator.watching.openmetrics import families
from tracebed.orchestrator.watching.picture import line, snapshot
from tracebed.orchestrator.watching.view import Status
from tracebed.validation.metrics import metrics

NODES = ("n1", "n2", "n3")
JOBS = (  # id, submit time, run time, nodes
    ("a", 0, 8, 2),
    ("b", 1, 6, 1),
    ("waits", 2, 8, 3),
    ("huge", 3, 1, 4),
    ("c", 4, 4, 1),
    ("d", 12, 6, 2),
)


class Fifo:
    """A batch system in this process: jobs start in the order of their submissions. Its first observation fails.

    Jobs sleep, and write the same records as `job.sh`.
    """

    name = "fifo"

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.free = dict.fromkeys(NODES, 0.0)
        self.start = 0.0
        self.jobs: dict[str, tuple[JobRequest, float, float, tuple[str, ...], JobState]] = {}
        self.polls = 0

    def facts(self) -> SystemFacts:
        return SystemFacts("fifo", "1", tuple(NodeFacts(name, 2) for name in NODES), {}, 1.0, 60.0)

    def submit(self, request: JobRequest) -> str:
        if request.nodes > len(NODES):
            raise Refused("too few nodes")
        nodes = tuple(sorted(sorted(NODES, key=self.free.__getitem__)[: request.nodes]))
        self.start = max(self.start, self.clock(), *(self.free[node] for node in nodes))
        end = self.start + int(request.arguments[2]) * 1e-9
        self.free |= dict.fromkeys(nodes, end)
        self.jobs[request.name] = (request, self.start, end, nodes, JobState.COMPLETED)
        return request.name

    def poll(self, prefix: str, known: Collection[str]) -> dict[str, JobObservation]:
        self.polls += 1
        if self.polls == 1:
            raise TestbedError("busy", transient=True)
        return {
            name: self._observed(name, *job, now=self.clock()) for name, job in list(self.jobs.items())
        }  # another thread submits

    def _observed(
        self,
        name: str,
        request: JobRequest,
        start: float,
        end: float,
        nodes: tuple[str, ...],
        state: JobState,
        now: float,
    ) -> JobObservation:
        if now < start or start >= end:  # waits, or was cancelled before its start
            return JobObservation(name, name, Phase.WAITING if now < end else Phase.ENDED, "", state)
        times = {"start": float(math.floor(start)), "nodes": nodes}
        if now < end:
            return JobObservation(name, name, Phase.RUNNING, "RUNNING", **times)
        status = "completed" if state is JobState.COMPLETED else "ended"
        (request.script.parent / f"{name}.{name}.end").write_text(
            f"job={name}\nstart={round(start * 1e9)}\nend={round(end * 1e9)}\nstatus={status}\nrestarts=0\n"
        )
        return JobObservation(name, name, Phase.ENDED, "COMPLETED", state, end=float(math.floor(end)), **times)

    def cancel(self, ids: Sequence[str]) -> None:
        now = self.clock()
        for name in ids:
            request, start, end, nodes, _ = self.jobs[name]
            if now < end:
                self.jobs[name] = (request, min(start, now), now, nodes, JobState.CANCELLED)


def replayed(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Run:
    """Replay `JOBS` in about five seconds."""
    table = pd.DataFrame(JOBS, columns=["job_id", "submit_time", "run_time", "nodes"])
    table = table.assign(submit_time=table["submit_time"] + 100.0, cores_per_node=1)
    clock = session.WallClock()
    monkeypatch.setattr(loop, "POLL_S", 0.1)
    monkeypatch.setattr(session, "BATCH_SYSTEMS", SimpleNamespace(load=lambda name: lambda settings: Fifo(clock.now)))
    jobs = Workload(table, Provenance(system=System(3, 2)))
    return replay(jobs, folder, BatchOptions(speed=6.0), name="small", **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a replay that has ended."""
    folder = tmp_path_factory.mktemp("watch") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        replayed(folder, monkeypatch)
    return folder


def view_so_far(run: Path, until: float = math.inf) -> BatchView:
    facts, entries = journal.read(run / JOURNAL)
    view = view_of(facts)
    assert isinstance(view, BatchView)
    view.apply(entry for entry in entries if entry.time <= until)
    return view


def final_view(run: Path) -> BatchView:
    view = view_so_far(run)
    view.finish(journal.read(run / JOURNAL)[0]["end"])
    return view


@pytest.mark.slow
def test_no_run_time_without_an_own_record_is_unmarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of the batch system have whole seconds: at 6x, jobs of 6 s were recorded with 0 s."""
    monkeypatch.setattr(JobRecords, "read", lambda *arguments: None)
    run = replayed(tmp_path / "run", monkeypatch)
    done = run.jobs[run.jobs["state"] == JobState.COMPLETED]
    short = done["end"] - done["start"] < done["run_time"] - 0.7  # the limit is 0.11 wall s
    assert short.any()
    assert done.loc[short, "reason"].str.contains("but its plan is").all()
    signals = run.info.health["signals"]
    assert signals["residual_s"] is None
    assert signals["run_time_off_s"] > 0.2
    assert final_view(tmp_path / "run").health() == run.info.health


def test_at_the_end_the_view_is_the_run(made: Path) -> None:
    run, view = Run.load(made), final_view(made)
    assert view.status is Status.ENDED
    assert view.counts() == {"planned": 0, "waiting": 0, "running": 0, "completed": 5, "rejected": 1}
    assert (view.finished, view.left_s(), view.waiting(), view.nodes_busy, view.resizes) == (6, 0.0, [], 0, 0)
    assert view.lateness() == run.info.lateness_ms
    assert view.health() == run.info.health
    assert run.info.health["signals"]["residual_s"] is not None
    assert view.utilization() == pytest.approx(metrics(run)["utilization"])
    rows = sorted((view.jobs.ids[held.job], *held[1:5]) for held in view.holdings(0.0))
    saved = run.allocations[["job_id", "node", "count", "start", "end"]]
    table = pd.DataFrame(rows, columns=saved.columns)
    pd.testing.assert_frame_equal(table, saved.sort_values(["job_id", "node"], ignore_index=True), check_dtype=False)
    assert "6 of 6 jobs ended" in line(view)
    assert line(view).endswith("healthy, ended")


def test_the_view_in_between_is_what_was_observed(made: Path) -> None:
    table = Run.load(made).jobs.set_index("job_id")
    some_ran = False
    for instant in np.linspace(100.5, table["end"].max(), 9)[:-1]:
        view = view_so_far(made, instant)
        names = {view.jobs.ids[job] for job in view.running}
        some_ran = some_ran or bool(names)
        assert names <= set(table.index[table["start"] <= view.now])
        assert view.finished <= (~(table["end"] > view.now)).sum()
        assert view.nodes_busy == sum(view.running.values()) <= len(NODES)
        assert set(view.waiting()).isdisjoint(view.running)
        assert sum(view.counts().values()) == len(JOBS)
        assert {job for job, *_ in view.holdings(0.0)} >= set(view.running)
        assert all(view.start_of(job) <= view.now for job in view.running)
        assert view.left_s() > 0
    assert some_ran


def test_the_states_of_the_nodes_are_unknown_and_not_made_up(made: Path) -> None:
    view = final_view(made)
    assert view.nodes_out is None
    assert snapshot(view)["nodes"] == {"all": 3, "busy": 0}
    assert "small under fifo on 3 emulated nodes" in text_of(view)
    assert "out unknown" in text_of(view)
    (nodes,) = (family for family in families(view) if family.name == "tracebed_nodes")
    assert {sample.labels["state"]: sample.value for sample in nodes.samples} == {"busy": 0}
    signals = view.health()["signals"]
    assert signals["nodes_missing"] is signals["agents_lost"] is None
    assert signals["submission_late_s"] >= 0


def test_faults_are_told_and_repetitions_are_one_line(made: Path) -> None:
    view = view_so_far(made)
    assert (dict(view.fault_counts), [fault.text for fault in view.faults]) == ({"error": 1}, ["error: busy"])
    for seconds in (1.0, 2.0):
        view.apply([Entry(0, view.now + seconds, "polled", None, None, {"took_s": 1.0, "error": "busy"})])
    view.apply([Entry(0, view.now, "failed", "a", None, {"called": 0.0, "reason": "no answer"})])
    view.apply([Entry(0, view.now, "step", None, None, {"since": 1e9, "until": 1e9, "seconds": -3600.0})])
    view.apply([Entry(0, view.now, "pause", None, None, {"at": 1.0, "wall_s": 5.0, "adopted": 0, "lost": 0})])
    assert dict(view.fault_counts) == {"error": 4, "step": 1, "pause": 1}
    assert [fault.text for fault in view.faults] == [
        *("error: busy", "error: job a, no answer", "step of the clock: -3.6e+03 s", "replay resumed")
    ]
    assert view.health()["signals"]["pauses"] == 1


def test_a_job_that_is_started_again_is_back_in_the_queue(made: Path) -> None:
    facts, entries = journal.read(made / JOURNAL)
    view = view_of(facts)
    started = next(
        number for number, entry in enumerate(entries) if entry.kind == "observed" and entry.data["seen"]["nodes"]
    )
    view.apply(entries[: started + 1])
    (job,) = view.running
    entry = entries[started]
    waits = entry.data["seen"] | {"phase": "waiting", "word": "PENDING", "nodes": [], "start": None, "reason": "Held"}
    view.apply([entry._replace(data=entry.data | {"seen": waits})])
    assert not view.running
    assert job in view.waiting()
    assert dict(view.fault_counts) == {"error": 1, "requeue": 1}
    assert view.faults[-1].text == f"job requeued: job {view.jobs.ids[job]}, Held"


def test_an_interrupted_replay_is_shown_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[int] = []

    def on_progress(done: int) -> None:
        if done >= 2 and not came:
            came.append(done)
            signal.raise_signal(signal.SIGTERM)

    run = replayed(tmp_path / "run", monkeypatch, on_progress=on_progress)
    view = final_view(tmp_path / "run")
    assert (view.status, view.reason) == (Status.INTERRUPTED, "SIGTERM")
    states = run.jobs["state"].value_counts().to_dict()
    assert states["interrupted"] >= 1
    assert {state: count for state, count in view.counts().items() if count} == states
    assert view.health() == run.info.health
    assert view.utilization() == pytest.approx(metrics(run)["utilization"])
    assert line(view).endswith("unhealthy, interrupted (SIGTERM)")


def test_a_replay_that_was_killed_has_stopped(made: Path) -> None:
    view = view_so_far(made, 105.0)
    view.finish(None)
    assert view.status is Status.STOPPED
    assert view.finished < len(JOBS)
    assert line(view).endswith("stopped")
    assert snapshot(view)["ended"]


def watch(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TRACEBED, "watch", *words], cwd=folder, capture_output=True, text=True, check=False)


def test_the_command_shows_a_finished_run(made: Path) -> None:
    done = watch("run", folder=made.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("healthy, ended\n")


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_journal_that_cannot_be_read_is_one_line(
    made: Path, tmp_path: Path, damage: str, call: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "run").mkdir()
    whole = (made / JOURNAL).read_bytes()
    changed: Mapping[str, bytes] = {"cut": whole[: len(whole) // 2 + 77], "empty": b"", "text": b'{"kind": "submi'}
    (tmp_path / "run" / JOURNAL).write_bytes(changed[damage])
    status, shown, error = call("watch", "run")
    if damage == "empty":  # a replay that was killed before its first job
        assert (status, shown) == (0, "")
        assert error == "tracebed: run: the replay ended before its first job\n"
    else:
        assert (status, shown) == (2, "")
        assert f"run/{JOURNAL}: the journal cannot be read: " in error
        assert "Traceback" not in error
