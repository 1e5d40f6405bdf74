"""Scenarios of replays on a batch system, drawn from a seed, and what must hold after each of them."""

from __future__ import annotations

import math
import random
import signal
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import pandas as pd

from tests.faults.batch import (
    CALL_FAULTS,
    CANCEL_FAULTS,
    JOB_FAULTS,
    KEPT_S,
    NODES,
    SUBMIT_FAULTS,
    BatchFault,
    DependingBatch,
    VirtualBatch,
    VirtualJob,
)
from tests.faults.scenario import broken_waits, columns_of, drawn_wait
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground import system as outside
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.batch.base import Phase
from tracebed.orchestrator.replay.batch.recovery import KilledReplay, cancel_leftover_jobs, recovered
from tracebed.orchestrator.replay.batch.session import BatchOptions, replay
from tracebed.orchestrator.replay.batch.watched import TERMINATED
from tracebed.orchestrator.replay.journal import Entry, has_facts, read
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.runs.working_folders import working_folders
from tracebed.testing.virtual.kernel import Killed, StalledError, VirtualWorld, never

JOBS, FAULTS = 30, 5
CONTROLLER_FAULTS = ("kill", "kill_other", "kill_cancel", "kill_reboot", "terminate", "disk_full", "step")
CALLS = 2000
"""Number of calls of the controller among which its faults are drawn."""
BOUND_S = 7200.0
"""Longest virtual time of a replay, s."""
SECONDS = (0.3, 2.0, 8.0, 25.0, 70.0, 130.0, 400.0)
SEEN_S = 4.0
"""Largest time between two observations around a step of the wall clock that tell when something happened, s."""
ALLOWANCE_S = 1.5
"""Largest error of a time in a run, wall s: the resolution of the batch system, and a launch."""


@dataclass(frozen=True)
class BatchScenario:
    """A scenario, which a test can contain as text.

    A job is (submit time, run time, time limit, number of nodes), in trace s. `accounting`: whether the batch system
    also answers about the jobs that it no longer lists.
    """

    seed: int
    jobs: tuple[tuple[float, float, float, int], ...]
    faults: tuple[BatchFault, ...] = ()
    speed: float = 10.0
    accounting: bool = False
    waits: tuple[str, ...] = ()
    """What each job waits for, as in `JobSpec.waits`; empty: no job waits."""
    depends: bool = False
    """Whether the batch system itself lets jobs wait for each other."""

    @classmethod
    def drawn(cls, seed: int, *, jobs: int = JOBS, faults: int = FAULTS) -> BatchScenario:
        """Return the scenario of a seed."""
        draw = random.Random(seed)
        submit, specs = 0.0, []
        for _ in range(draw.randint(2, jobs)):
            submit += draw.choice((0.0, 0.1, 1.0, 30.0)) * draw.random()
            run_time = draw.lognormvariate(3.5, 1.0)
            limit = 600.0 * draw.randint(1, 3)
            specs.append((round(submit, 3), round(run_time, 3), limit, min(NODES, 2 ** draw.randrange(5))))
        lasts = submit / 10.0 + 30.0
        found = []
        for _ in range(draw.randint(0, faults)):
            kind = draw.choice((*CALL_FAULTS, *JOB_FAULTS, *CONTROLLER_FAULTS))
            seconds, at = draw.choice(SECONDS), round(draw.random() * lasts, 3)
            if kind in SUBMIT_FAULTS:
                at = round(0.8 + draw.random() * (submit / 10.0 + 0.5), 3)
            elif kind in CANCEL_FAULTS:
                at = 0.0
            elif kind.startswith("kill") or kind == "terminate":
                at = draw.randrange(1, CALLS)
            elif kind == "step":
                seconds = draw.choice((-3600.0, -30.0, -0.4, 0.4, 30.0, 3600.0))
            found.append(BatchFault(kind, at, seconds, round(draw.random(), 3)))
        accounting, more = draw.random() < 0.5, random.Random(f"waits of {seed}")
        waits = [drawn_wait(more) if more.random() < 0.4 else "" for _ in specs] if more.random() < 0.4 else []
        return cls(seed, tuple(specs), tuple(found), 10.0, accounting, tuple(waits), more.random() < 0.5)

    @cached_property
    def workload(self) -> Workload:
        """The workload."""
        columns = ("submit_time", "run_time", "time_limit", "nodes")
        table = pd.DataFrame(self.jobs, columns=columns)
        table = table.assign(job_id=[f"j{number}" for number in range(len(table))], cores_per_node=1)
        if self.waits:
            rows = [columns_of(text, number, 0) for number, text in zip(range(len(table)), self.waits)]  # noqa: B905
            dependency, after, think_time = zip(*rows, strict=True)
            table = table.assign(dependency=dependency, after=after, think_time=think_time)
        return Workload(table, Provenance(system=System(NODES, 1)))

    def has(self, *beginnings: str) -> bool:
        """Return whether the kind of one of its faults begins so."""
        return any(fault.kind.startswith(beginnings) for fault in self.faults)


@dataclass(frozen=True)
class _Options(BatchOptions):
    """The options of a replay on a virtual batch system."""

    batch: VirtualBatch | None = field(default=None, compare=False)

    def system(self) -> VirtualBatch:
        """Return the batch system."""
        assert self.batch is not None
        return self.batch


class BatchPlay:
    """The replay of a scenario in a virtual world, with its resumptions.

    `run` is None if the jobs of the killed replay were cancelled. `log` has kills, errors and refusals, `journals` the
    entries of the journal at the kills.
    """

    def __init__(self, scenario: BatchScenario) -> None:
        self.scenario = scenario
        self.world = VirtualWorld(scenario.seed)
        self.system = self._make_system()
        self.options = _Options(speed=scenario.speed, scheduler="virtual", batch=self.system)
        self.output = self.world.home / "run"
        self.run: Run | None = None
        self.log: list[str] = []
        self.journals: list[list[Entry]] = []
        self._strikes = sorted(
            (fault for fault in scenario.faults if fault.kind.startswith(("kill", "terminate"))),
            key=lambda fault: fault.at,
        )
        self._killed: BatchFault | None = None
        self._signal = False
        self._wall_at_0 = 0.0
        for fault in scenario.faults:
            if fault.kind == "step":
                self.world.after(fault.at, partial(self._step, fault))
            elif fault.kind == "disk_full":
                self.world.after(fault.at, partial(self._fill, fault))

    def _make_system(self) -> VirtualBatch:
        scenario = self.scenario
        kind = DependingBatch if scenario.depends else VirtualBatch
        return kind(self.world, scenario.faults, accounting=scenario.accounting, seed=scenario.seed + 2)

    def _step(self, fault: BatchFault) -> None:
        self.world.wall_steps += fault.seconds

    def _fill(self, fault: BatchFault) -> None:
        self.world.full_until = self.world.now + fault.seconds

    def _strike(self, call: int) -> None:
        """Let the faults of the controller strike that are due at a call."""
        world = self.world
        if world.now > BOUND_S:
            raise StalledError(f"the replay has not ended after {BOUND_S:g} s")
        while self._strikes and call >= self._strikes[0].at:
            fault = self._strikes.pop(0)
            if fault.kind == "terminate":
                self._signal = True
                continue
            self._killed = fault
            world.keep_disk()
            world.kill_controller()
            raise Killed
        if self._signal and world.thread is None and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            self._signal = False
            signal.raise_signal(signal.SIGTERM)

    def play(self) -> BatchPlay:
        """Replay, and resume the replay whenever it was killed or has failed."""
        with outside.using(self.world), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for attempt in range(len(self.scenario.faults) + 5):
                if not any(has_facts(left / JOURNAL) for left in working_folders(self.output)):
                    self._wall_at_0 = self.world.time() - self.world.now
                self.world.on_call = self._strike
                try:
                    self.run = self._replay(self.scenario.workload, resume=attempt > 0)
                    return self
                except Killed:
                    assert self._killed is not None
                    if self._after_kill(self._killed):
                        return self
                except (InputError, TestbedError) as error:
                    self.log.append(f"error: {error}")
                    self._wait(
                        max(8.0, self.world.full_until + 1.0 - self.world.now, self._silent_until() - self.world.now)
                    )
            raise AssertionError(f"error: no attempt succeeded: {self.log}")

    def _replay(self, workload: Workload, *, resume: bool) -> Run:
        return replay(workload, self.output, self.options, resume=resume)

    def _silent_until(self) -> float:
        """Return the time at which the batch system answers again."""
        now = self.world.now
        return max((f.at + f.seconds for f in self.system.faults if f.kind == "poll_silent" and f.at <= now), default=0)

    def _wait(self, seconds: float) -> None:
        self.world.on_call = None
        self.world.wait_for(never, self.world.monotonic() + seconds)

    def _after_kill(self, fault: BatchFault) -> bool:
        """Start another controller, and do what follows the kill. Return whether the scenario has ended."""
        self.log.append(fault.kind)
        self.world.restart_controller(rebooted=fault.kind == "kill_reboot")
        self._wait(fault.seconds)
        left = working_folders(self.output)
        if not left or not has_facts(left[-1] / JOURNAL):
            return False
        before = read(left[-1] / JOURNAL)
        self.journals.append(before[1])
        if fault.kind == "kill_other":
            try:
                self._replay(replace(self.scenario, jobs=self.scenario.jobs[:-1]).workload, resume=True)
            except InputError as error:
                self.log.append(f"refused: {error}")
                assert "differs in: workload" in str(error), error
            except TestbedError as error:
                self.log.append(f"error: {error}")
            else:
                raise AssertionError("resumption: another workload was accepted")
            assert read(left[-1] / JOURNAL) == before
        if fault.kind == "kill_cancel":
            for _ in range(10):
                try:
                    cancel_leftover_jobs(left[-1], self.system)
                except TestbedError as error:
                    self.log.append(f"error: {error}")
                    self._wait(60.0)
                    continue
                return True
            raise AssertionError(f"left: the jobs were not cancelled: {self.log}")
        return False

    def close(self) -> None:
        """End the world."""
        self.world.end()

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        last = self.world.now - 2.0  # what is accepted after the last observation cannot be noticed
        self._wait(1.0)  # for releases of nodes
        past = KilledReplay(self.run.folder) if self.run is not None and self.run.folder is not None else None
        if past is not None:
            last = min(last, self._last_answer(past))
        jobs = [job for job in self.system.jobs if job.states[0][0] < last]
        live = [job.id for job in jobs if not job.over and job.now.phase is not Phase.ENDING]
        told = self.run is not None and any("may still run" in warning for warning in self.run.info.warnings)
        assert told or not live, f"left: jobs {live} of the batch system still run"
        if self.run is None or past is None:
            return
        table = self.run.jobs
        assert all(past.entries[: len(journal)] == journal for journal in self.journals), (
            "journal: a resumption lost entries"
        )
        states = set(map(JobState, table["state"]))
        assert states <= self._possible(), f"states: {states}"
        allowed_s = self._allowed_s(past)
        unsure_s = allowed_s + max(self._ambiguous_s(past, name) for name in table["job_id"])
        assert self.run.info.resolution_s / self.scenario.speed < unsure_s, "cores: two jobs were on a node"
        early_s = (table["submit"] - table["start"]).max() / self.scenario.speed
        unsure = self.scenario.has("step", "kill_reboot")
        assert not early_s > (allowed_s if unsure else 1e-6), f"times: a job started {early_s:.3f} s early"
        rows = table.set_index("job_id").to_dict("index")
        waits = {f"j{number}": text for number, text in zip(range(len(rows)), self.scenario.waits) if text}  # noqa: B905
        early_s = (allowed_s + ALLOWANCE_S) * self.scenario.speed
        broken = [*broken_waits(waits, rows, 0, early_s)] if math.isfinite(allowed_s) else []
        assert not broken, broken[0]
        for number, row in enumerate(table.to_dict("records")):
            self._check_job(past, number, row, jobs, allowed_s)
        if self.scenario.seed % 4 == 0:  # the recovery takes as long as the replay
            again = recovered(past.folder)
            columns = ["job_id", "state", "reason", "submit", "start", "end"]
            pd.testing.assert_frame_equal(again.jobs[columns], table[columns], atol=1e-3)

    def _last_answer(self, past: KilledReplay) -> float:
        """Return the virtual time at which the last observation with an answer began."""
        answered = (each for each in reversed(past.entries) if each.kind == "polled" and not each.data["error"])
        last = next(answered, None)
        return past.wall(last.time) - last.data["took_s"] - self._wall_at_0 if last is not None else -math.inf

    def _possible(self) -> set[JobState]:
        """Return the states that jobs can have after the faults of the scenario."""
        has = self.scenario.has
        over_limit = any(run_time >= limit - 2 for _, run_time, limit, _ in self.scenario.jobs)
        blind = sum(fault.kind == "poll_empty" for fault in self.scenario.faults) > FAULTS
        causes = {
            JobState.COMPLETED: True,
            JobState.KILLED: over_limit,
            JobState.FAILED: over_limit or has("node_fail", "torn", "vanish"),
            JobState.INTERRUPTED: has("terminate"),
            JobState.REJECTED: has("submit_refused"),
            JobState.CANCELLED: bool(self.scenario.waits),
            JobState.UNKNOWN: blind or has("vanish", "no_record", "torn", "node_fail"),
        }
        return {state for state, cause in causes.items() if cause}

    def _allowed_s(self, past: KilledReplay) -> float:
        """Return the largest error of a time, wall s."""
        if self.scenario.has("step") and self.scenario.has("kill_reboot"):
            return math.inf  # a step in between cannot be detected
        seen = [past.wall(each.time) for each in past.entries if each.kind == "polled" and not each.data["error"]]
        allowed_s = ALLOWANCE_S
        if past.info.pauses:  # two steps in a pause may cancel each other
            stepped_s = sum(abs(fault.seconds) for fault in self.scenario.faults if fault.kind == "step")
            allowed_s += max(0.0, stepped_s - sum(abs(step.size) for step in past.steps))
        for step in past.steps:
            before = max((at for at in seen if at <= step.since), default=-math.inf)
            after = min((at for at in seen if at >= step.until), default=math.inf)
            if after - before > SEEN_S:  # what happened between the two may be before or after the step
                allowed_s += abs(step.size)
        return allowed_s

    def _ambiguous_s(self, past: KilledReplay, name: str) -> float:
        """Return the error of times of a job that ran unobserved around steps: its submission had no answer yet."""
        told = [past.wall(each.time) for each in past.entries if each.job == name and each.kind.startswith("submit")]
        within = (step for step in past.steps if told and min(told) <= step.until and step.since <= max(told))
        return sum(abs(step.size) for step in within)

    def _check_job(
        self, past: KilledReplay, number: int, row: dict[Any, Any], noticeable: list[VirtualJob], allowed_s: float
    ) -> None:
        """Compare a job of the run with the jobs of the batch system."""
        scenario, job, name, state = self.scenario, past.jobs[number], row["job_id"], JobState(row["state"])
        assert state is JobState.COMPLETED or row["reason"], f"states: {name} is {state} without a reason"
        accepted = [each for each in self.system.jobs if each.request.name == f"{past.facts['prefix']}{number}"]
        kinds = Counter(entry.kind for entry in past.entries if entry.job == name)
        told = kinds["twice"] or kinds["submitting"] >= sum(each in noticeable for each in accepted)
        forgotten = scenario.has("vanish") or any(fault.seconds > KEPT_S for fault in scenario.faults)
        assert told or forgotten, f"twice: {name} was submitted {len(accepted)} times"
        mine = next((each for each in accepted if each.id == job.id), None)
        unsubmitted = (JobState.REJECTED, JobState.INTERRUPTED, JobState.CANCELLED)
        assert mine is not None or state in unsubmitted, f"states: {name} is {state}"
        if mine is None or state not in (JobState.COMPLETED, JobState.KILLED, JobState.FAILED):
            return
        allowed_s += self._ambiguous_s(past, name)
        right = mine.now.state is state or row["reason"] == TERMINATED
        assert right, f"states: {name} is {state}, and was {mine.now.state} ({mine.now.word})"
        for what, virtual in mine.lives[-1]._asdict().items():
            error_s = (row[what] - past.trace(self._wall_at_0 + virtual)) / scenario.speed
            unknown = what == "launched" and math.isnan(error_s)  # the job was killed before, or left no record
            assert unknown or abs(error_s) < allowed_s, f"times: {what} of {name} is {error_s:.3f} s off"
