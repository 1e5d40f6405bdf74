"""Watching a replay: the view made of its journal, the command, and the metrics."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from tests.oracles.redecided import virtual, workload
from tests.patience import GUARD_S, patience
from tests.replay.test_replay_sharing import MATE_AND_GUEST
from tests.runs import replaying
from tests.servers.ports import free_ports
from tracebed.api.runs import resizes
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.batch import loop, session
from tracebed.orchestrator.replay.batch import recovery as batch_recovery
from tracebed.orchestrator.replay.batch.base import JobObservation, JobRequest, Phase, Refused, SystemFacts
from tracebed.orchestrator.replay.batch.records import JobRecords
from tracebed.orchestrator.replay.batch.session import BatchOptions
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.recovery import SCHEMA
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.watching.batch_view import BatchView
from tracebed.orchestrator.watching.follower import source_of, view_of
from tracebed.orchestrator.watching.openmetrics import Metrics, families
from tracebed.orchestrator.watching.picture import line, picture, snapshot
from tracebed.orchestrator.watching.view import Status, View
from tracebed.validation.metrics import metrics

TRACEBED = (sys.executable, "-c", "from tracebed.cli import main; main()")
REPLAY = ("replay", "w.csv", "--policy", "pref", "-o", "run")
pytestmark = pytest.mark.usefixtures("no_process_is_left")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay of 12 jobs on four emulated nodes."""
    folder = tmp_path_factory.mktemp("watch") / "run"
    replay(workload(), virtual(4), "pref", folder, name="small", **replaying(speed=2000))
    return folder


def view_at(run: Path, *, until: float = math.inf) -> View:
    facts, entries = journal.read(run / JOURNAL)
    view = view_of(facts)
    view.apply(entry for entry in entries if entry.time <= until)
    return view


def text_of(view: View, width: int = 100, height: int = 24) -> str:
    console = Console(width=width, height=height, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(picture(view, width, height))
    return console.export_text()


def test_at_the_end_the_view_is_the_run(made: Path) -> None:
    run, view = Run.load(made), view_at(made)
    assert view.counts() == {"planned": 0, "waiting": 0, "running": 0, "completed": 12}
    assert (view.finished, view.left_s(), view.waiting(), view.nodes_busy) == (12, 0.0, [], 0)
    assert view.resizes == resizes(run) > 0
    assert view.lateness() == run.info.lateness_ms
    assert view.health()["signals"].keys() == run.info.health["signals"].keys()
    assert view.utilization() == pytest.approx(metrics(run)["utilization"])
    assert metrics(run)["makespan_s"] <= view.now


def test_the_view_in_between_is_the_run_so_far(made: Path) -> None:
    run = Run.load(made)
    table = run.jobs.set_index("job_id")
    for instant in np.linspace(table["submit"].min(), table["end"].max(), 7)[1:-1]:
        view = view_at(made, until=instant)
        running = table[(table["start"] <= view.now) & ~(table["end"] <= view.now)]
        waiting = table[(table["submit"] <= view.now) & ~(table["start"] <= view.now)]
        assert {view.jobs.ids[job] for job in view.running} == {*running.index}
        assert [view.jobs.ids[job] for job in view.waiting()] == [*waiting.sort_values("submit").index]
        assert view.finished == (table["end"] <= view.now).sum()
        assert view.left_s() > 0


@pytest.mark.parametrize("columns", [1, 7, 80])
def test_the_bars_are_the_allocations_at_the_middles_of_the_periods(made: Path, columns: int) -> None:
    view, run = view_at(made), Run.load(made)
    since = view.now / 3
    grid = view.occupation(since, columns)
    step = (view.now - since) / columns
    slow = np.full_like(grid, -1)
    for row in run.allocations.itertuples():
        for column in range(columns):
            if row.start <= since + (column + 0.5) * step < row.end:
                slow[:, row.node : row.node + row.count, column] = view.jobs.ids.index(row.job_id)
    assert (grid == slow).all()
    assert (grid >= 0).any()


def test_the_picture_has_the_queue_the_nodes_and_the_time_left(made: Path) -> None:
    run = Run.load(made)
    first = run.jobs.loc[run.jobs["start"].idxmin()]  # its bar has room for its name, whatever the times of the others
    view = view_at(made, until=float(first["start"] + first["end"]) / 2)
    text = text_of(view)
    assert re.search(r"small under pref on 4 virtual nodes", text)
    assert f"{view.finished}/12 jobs about" in re.sub(" +", " ", text)
    assert f"queue  {len(view.waiting())}" in text
    assert "2000x" in text and re.search("^health (healthy|degraded|unhealthy)", text, re.MULTILINE)
    for name in ("n1", "n2", "n3", "n4"):
        assert re.search(rf"^{name} ", text, re.MULTILINE)
    assert re.search(rf"^n\d .*{first['job_id']}", text, re.MULTILINE)
    assert f"{view.finished} of 12 jobs ended" in line(view)


@pytest.mark.parametrize("width", [80, 120])
def test_the_reason_of_a_bad_health_is_never_cut(made: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "a launch or an end took more than twice the usual time, by: 0.134 s, job 1 (limit 0.117 s)"
    causes = [{"text": text} for text in (long, "load by other processes: 95.2 % (limit 80 %)", "a third one")]
    view = view_at(made)
    monkeypatch.setattr(view, "health", lambda: {"state": "degraded", "causes": causes})
    lines = text_of(view, width).splitlines()
    assert width - 1 <= max(map(len, lines)) <= width and len(lines) <= 24
    text = re.sub(r"\s+", " ", "\n".join(lines))
    assert f"health degraded ({long}; {causes[1]['text']}; 1 more)" in text
    assert re.search("^n4 ", "\n".join(lines), re.MULTILINE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay of a job that lends a core of its node to a guest."""
    folder = tmp_path_factory.mktemp("watch") / "run"
    work, endless = Workload(pd.DataFrame(MATE_AND_GUEST)), {"max_slowdown": "inf"}
    replay(work, virtual(1), "sd", folder, policy_parameters=endless, **replaying(speed=400))
    return folder


def test_changes_of_cores_and_hand_overs_are_shown(shared: Path) -> None:
    run, view = Run.load(shared), view_at(shared)
    assert dict(view.core_changes) == run.core_changes["cause"].value_counts().to_dict() == {"lend": 1, "return": 1}
    assert view.handovers() == run.info.handovers and view.handovers()["handovers"] == 2
    assert view.health()["signals"]["core_overlap_s"] == run.info.health["signals"]["core_overlap_s"] == 0.0
    told = snapshot(view)
    assert (told["core_changes"], told["handovers"]) == ({"lend": 1, "return": 1}, run.info.handovers)
    assert re.search(r"2 changes \(1 lend, 1 return\) +hand-overs +overlap 0 ms, gap [\d.]+ ms", text_of(view))


def test_changes_of_cores_and_hand_overs_are_metrics(shared: Path) -> None:
    pytest.importorskip("prometheus_client")
    samples = [sample for family in families(view_at(shared)) for sample in family.samples]
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert found["tracebed_core_changes_total", "lend"] == found["tracebed_core_changes_total", "return"] == 1
    assert found["tracebed_handover_gap_seconds",] == Run.load(shared).info.handovers["gap_s"]
    assert found["tracebed_overlap_seconds",] == 0.0


def test_jobs_that_share_a_node_are_stacked_and_hold_their_cores(shared: Path) -> None:
    run = Run.load(shared)
    guest = run.jobs.set_index("job_id").loc["guest"]
    view = view_at(shared, until=guest["end"] - 1e-6)  # the guest still runs
    assert view.occupation(guest["start"], 3).tolist() == [[[0, 0, 0]], [[1, 1, 1]]]
    first, last = run.jobs["submit"].min(), run.jobs["submit"].max()
    for instant in (last, (first + last) / 2):  # the window ends with the last submission, until then with the view
        held, each = run.allocations, view_at(shared, until=instant)
        seconds = held["end"].clip(first, each.now) - held["start"].clip(first, each.now)
        assert each.utilization() == pytest.approx((seconds * held["cores"]).sum() / 2 / (each.now - first))
    assert view.utilization() == view_at(shared).utilization() == pytest.approx(metrics(run)["utilization"])
    assert "\N{LOWER HALF BLOCK}" in text_of(view)


def test_many_nodes_share_rows(tmp_path: Path) -> None:
    replay(workload(nodes=30), virtual(30), "easy", tmp_path / "run", **replaying(speed=5000))
    view = view_at(tmp_path / "run")
    text = text_of(view, height=20)
    assert len(text.splitlines()) <= 20
    assert re.search(r"^n1-n\d+ ", text, re.MULTILINE)


def test_faults_are_told(made: Path) -> None:
    view = view_at(made)
    view.apply([Entry(9, view.now + 1, "down", None, "n2", {"reason": "its agent was killed"})])
    view.apply([Entry(9, view.now, "error", view.jobs.ids[0], "n2", {"what": "the job has just ended"})])
    assert (dict(view.fault_counts), view.nodes_out) == ({"down": 1}, [1])
    assert "node lost: n2, its agent was killed" in text_of(view)
    assert "1 out" in text_of(view) and "1 nodes out" in line(view)
    view.apply([Entry(10, view.now + 1, "up", None, "n2", {})])
    assert view.nodes_out == []


@pytest.mark.slow
def test_a_replay_is_watched_from_a_second_process(tmp_path: Path) -> None:
    write_workload(workload(), tmp_path / "w.csv")
    watcher = subprocess.Popen(
        [*TRACEBED, "watch", "run", "--wait", "--interval", "0.2", "--json", "--metrics", "run.prom"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    replayed = subprocess.run(
        [*TRACEBED, "-q", *REPLAY, "--inventory", "emulated-4", "--speed", "60"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    out, _ = watcher.communicate(timeout=GUARD_S)
    states = [json.loads(line) for line in out.splitlines()]
    assert watcher.returncode == 0, replayed.stderr
    assert [state["time_s"] for state in states] == sorted(state["time_s"] for state in states)
    assert not states[0]["ended"] and states[-1]["ended"]
    assert any(state["jobs"]["running"] for state in states)
    assert 'tracebed_jobs{state="waiting"}' in (tmp_path / "run.prom").read_text()
    once = subprocess.run([*TRACEBED, "watch", "run"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "12 of 12 jobs ended" in once.stdout


def test_what_is_no_replay_is_refused(tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("absent", "folder"):
        status, _, error = call("watch", name)
        assert status == 2
        assert f"{name}: no replay writes to it" in error
    assert source_of(tmp_path / "folder") is None
    with pytest.raises(InputError, match="the journal is damaged"):
        view_of({"schema": SCHEMA})
    with pytest.raises(InputError, match="the journal is damaged"):
        view_of({"schema": batch_recovery.SCHEMA})
    for facts in ({"schema": "tracebed-journal/99"}, {}):
        with pytest.raises(InputError, match=f"not a journal of the schema {SCHEMA} or {batch_recovery.SCHEMA}"):
            view_of(facts)


def test_a_damaged_entry_is_one_line(made: Path) -> None:
    view = view_of(journal.read(made / JOURNAL)[0])
    with pytest.raises(InputError, match="the journal is damaged: KeyError"):
        view.apply([Entry(1, 1000.0, "start", "job 0", None, {"nodes": ["nowhere"]})])


def test_metrics_are_served_on_the_loopback_only(made: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    view = view_at(made)
    [port] = free_ports(1)
    served = Metrics(port, None)
    served.update(view)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=GUARD_S).read().decode()
        with pytest.raises(InputError, match=f"port {port} cannot be used"):
            Metrics(port, None)
        listening = Path("/proc/net/tcp").read_text()
        assert f" 0100007F:{port:04X} " in listening
        assert f" 00000000:{port:04X} " not in listening
    finally:
        served.close()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["tracebed_jobs", "completed"] == 12
    assert found["tracebed_nodes", "idle"] == 4
    assert found["tracebed_submission_lateness_seconds", "1"] == pytest.approx(view.lateness()["max"] / 1e3)
    assert sum(value for (name, *_), value in found.items() if name == "tracebed_health") == 1
    assert found["tracebed_resizes_total",] == view.resizes


def test_the_watcher_of_a_replay_ends_with_it(tmp_path: Path) -> None:
    write_workload(workload(), tmp_path / "w.csv")
    (tmp_path / "nodes.yaml").write_text("linger_s: 0\nnodes: [{name: 'n[1-4]', cores: 8, emulated: true}]\n")
    replaying = subprocess.Popen(
        [*TRACEBED, *REPLAY, "--inventory", "nodes.yaml", "--speed", "1", "--metrics", "run.prom"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + patience(240)
    while not (tmp_path / "run.prom").exists():
        assert replaying.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    replaying.kill()
    replaying.wait()  # the fixture sees to it that the watcher ends
    done = subprocess.run([*TRACEBED, "watch", "run"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(", stopped\n")
    assert re.search(r"run\.partial-\w+: the replay was killed or has failed: .* --resume continues it", done.stderr)


# -- a replay on a batch system, compared with the run that the replay saves -------------------------------------------

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
    return session.replay(jobs, folder, BatchOptions(speed=6.0), name="small", **options)


@pytest.fixture(scope="module")
def made_by_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_at_the_end_the_view_of_a_batch_system_is_the_run(made_by_batch: Path) -> None:
    run, view = Run.load(made_by_batch), final_view(made_by_batch)
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


def test_the_view_in_between_is_what_was_observed(made_by_batch: Path) -> None:
    table = Run.load(made_by_batch).jobs.set_index("job_id")
    some_ran = False
    for instant in np.linspace(100.5, table["end"].max(), 9)[:-1]:
        view = view_so_far(made_by_batch, instant)
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


def test_the_states_of_the_nodes_are_unknown_and_not_made_up(made_by_batch: Path) -> None:
    view = final_view(made_by_batch)
    assert view.nodes_out is None
    assert snapshot(view)["nodes"] == {"all": 3, "busy": 0}
    assert "small under fifo on 3 emulated nodes" in text_of(view)
    assert "out unknown" in text_of(view)
    (nodes,) = (family for family in families(view) if family.name == "tracebed_nodes")
    assert {sample.labels["state"]: sample.value for sample in nodes.samples} == {"busy": 0}
    signals = view.health()["signals"]
    assert signals["nodes_missing"] is signals["agents_lost"] is None
    assert signals["submission_late_s"] >= 0


def test_faults_are_told_and_repetitions_are_one_line(made_by_batch: Path) -> None:
    view = view_so_far(made_by_batch)
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


def test_a_job_that_is_started_again_is_back_in_the_queue(made_by_batch: Path) -> None:
    facts, entries = journal.read(made_by_batch / JOURNAL)
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


def test_a_replay_that_was_killed_has_stopped(made_by_batch: Path) -> None:
    view = view_so_far(made_by_batch, 105.0)
    view.finish(None)
    assert view.status is Status.STOPPED
    assert view.finished < len(JOBS)
    assert line(view).endswith("stopped")
    assert snapshot(view)["ended"]


def watch(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TRACEBED, "watch", *words], cwd=folder, capture_output=True, text=True, check=False)


def test_the_command_shows_a_finished_run(made_by_batch: Path) -> None:
    done = watch("run", folder=made_by_batch.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("healthy, ended\n")


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_journal_that_cannot_be_read_is_one_line(
    made_by_batch: Path, tmp_path: Path, damage: str, call: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "run").mkdir()
    whole = (made_by_batch / JOURNAL).read_bytes()
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
