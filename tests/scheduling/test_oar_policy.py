"""The policy `oar`: each rule against decisions of a real OAR, and whole runs against recorded ones."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.recorders.record_oar import FOLDER, record
from tests.servers.oard import reason_to_skip
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.orchestrator.scheduling.policies.oar import END, SUBMISSION, Oar, Occupied, Planned, Server, Waiting, plan

RECORDINGS = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.json.gz"))
LATE_S = 1.0
"""Largest difference between the recorded and the computed instant of a pass: checks of running jobs take time."""


class Recorded(NamedTuple):
    """A job of a recording, with times in seconds after the first submission."""

    submit: float
    limit: int
    start: int
    end: float
    nodes: tuple[int, ...]


class Pass(NamedTuple):
    """A recorded plan, and the state before it."""

    at: int
    running: list[Occupied]
    waiting: list[Waiting]
    planned: dict[int, tuple[int, tuple[int, ...]]]


class Recording:
    """A recorded run of a real OAR."""

    def __init__(self, raw: dict[str, Any]) -> None:
        """Read the JSON object of a recording."""
        settings = raw["settings"]
        self.parameters: dict[str, Any] = {
            key.removeprefix("SCHEDULER_").lower(): int(value)
            for key, value in settings.items()
            if key.removeprefix("SCHEDULER_").lower() in Oar.__dataclass_fields__
        }
        self.policy = Oar(**self.parameters)
        self.nodes = int(raw["nodes"])
        self.jobs = {
            job: Recorded(submit, limit, start, end, tuple(nodes))
            for job, submit, limit, start, end, nodes in raw["jobs"]
        }
        self.server = [(begin, end, command) for begin, end, command in raw["server"]]
        self._plans = raw["passes"]

    @classmethod
    def load(cls, name: str) -> Recording:
        """Load a recording by its name."""
        return cls(json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes())))

    def passes(self) -> Iterator[Pass]:
        """Yield the plans with waiting jobs."""
        for at, rows in self._plans:
            running = [
                Occupied(start, self.jobs[job].limit, mask_of(nodes)) for job, start, nodes in rows if start < at
            ]
            planned = {job: (start, tuple(nodes)) for job, start, nodes in rows if start >= at}
            waiting = [Waiting(job, len(nodes), self.jobs[job].limit) for job, (_, nodes) in planned.items()]
            if planned:
                yield Pass(at, running, waiting, planned)

    def modeled(self, here: Pass) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Return the plan of the policy in the state of a recorded plan."""
        idle = (1 << self.nodes) - 1
        for job in here.running:
            idle &= ~job.nodes
        found = planned(here.at, idle, here.running, here.waiting, self.policy)
        return {job: (start, nodes_of(nodes)) for job, start, nodes in found}

    def simulated(self, policy: str = "oar", **parameters: Any) -> Run:
        """Return the simulation of the run, with the recorded run times."""
        columns = ["job_id", "submit_time", "time_limit", "run_time", "nodes"]
        rows = [(str(job), at.submit, at.limit, at.end - at.start, len(at.nodes)) for job, at in self.jobs.items()]
        jobs = Workload(pd.DataFrame(rows, columns=columns), Provenance(system=System(self.nodes, 1)))
        own = self.parameters if policy == "oar" else {}
        return tb.simulate(jobs, policy, self.nodes, policy_parameters=own | parameters)

    def wait(self) -> float:
        """Return the mean wait, s."""
        return sum(job.start - job.submit for job in self.jobs.values()) / len(self.jobs)


def planned(at: int, idle: int, running: list[Occupied], waiting: list[Waiting], policy: Oar) -> list[Planned]:
    """Return the plan of the policy."""
    hole = policy.gantt_hole_minimum_time
    return list(plan(at, idle, running, waiting, security=policy.job_security_time, hole=hole))


# -- whole runs -------------------------------------------------------------------------------------------------------

MODELS: dict[str, dict[str, Any]] = {
    "oar": {},
    "conservative": {"reserve": "nodes", "backfill_depth": 100_000},
    "easy": {"reserve": "nodes"},
}
"""Policy -> its parameters."""


def missed(recording: Recording, policy: str) -> float:
    """Return the error of the mean wait in the simulation of a recorded run, as a share."""
    run = recording.simulated(policy, **MODELS[policy])
    return float((run.jobs["start"] - run.jobs["submit"]).mean()) / recording.wait() - 1.0


WAITS = {
    "defaults": (0.136, -0.160, -0.190),
    "load": (0.010, -0.058, -0.118),
    "many": (-0.008, -0.260, -0.301),
    "many-again": (-0.041, -0.247, -0.282),
}
"""Recording -> errors of the mean wait, as in docs/reference/policies/oar.md."""


@pytest.mark.parametrize(("name", "shares"), WAITS.items())
def test_errors_of_the_mean_wait_in_whole_runs(name: str, shares: tuple[float, ...]) -> None:
    recording = Recording.load(name)
    assert [missed(recording, policy) for policy in MODELS] == pytest.approx(shares, abs=5e-4)


def test_a_simulation_differs_from_a_recorded_run_hardly_more_than_a_second_run_of_the_same_jobs() -> None:
    runs = [Recording.load(name) for name in ("many", "many-again")]
    first, again = (np.array([job.start for job in run.jobs.values()]) for run in runs)
    noise = np.sqrt(np.mean((again - first) ** 2))
    ratios = [
        np.sqrt(np.mean((run.simulated().jobs["start"] - starts) ** 2)) / noise
        for run, starts in zip(runs, (first, again), strict=True)
    ]
    assert ratios == pytest.approx((1.62, 1.03), abs=5e-3)


# -- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_recorded_plan_has_the_same_starts_and_nodes(name: str) -> None:
    recording = Recording.load(name)
    passes = list(recording.passes())
    for here in passes:
        assert recording.modeled(here) == here.planned, f"pass at {here.at} s"
    assert len(passes) > 20


@pytest.mark.parametrize("changed", [{"job_security_time": 59}, {"gantt_hole_minimum_time": 0}])
def test_recorded_plans_show_the_time_between_jobs_and_the_shortest_gap(changed: dict[str, int]) -> None:
    recording = Recording.load("load")
    recording.policy = Oar(**changed)
    assert any(recording.modeled(here) != here.planned for here in recording.passes())


def plans(waiting: list[tuple[int, int]], running: list[Occupied] | None = None, **parameters: int) -> list[Any]:
    """Return (start, nodes) of jobs with (nodes, limit), on four nodes at second 1000."""
    busy = running or []
    idle = 0b1111
    for job in busy:
        idle &= ~job.nodes
    asked = [Waiting(number, *each) for number, each in enumerate(waiting)]
    policy = Oar(**{"job_security_time": 60, "gantt_hole_minimum_time": 300, **parameters})
    return [(start, nodes_of(nodes)) for _, start, nodes in planned(1000, idle, busy, asked, policy)]


def test_a_job_gets_the_lowest_numbered_nodes_that_are_free_for_its_limit() -> None:
    assert plans([(1, 50), (2, 50)]) == [(1000, (0,)), (1000, (1, 2))]


def test_nodes_are_free_one_second_after_the_limit_and_the_time_between_jobs() -> None:
    assert plans([(4, 50), (1, 50)]) == [(1000, (0, 1, 2, 3)), (1111, (0,))]
    assert plans([(4, 50), (1, 50)], job_security_time=1)[1] == (1052, (0,))
    assert plans([(4, 50)], [Occupied(980, 100, 0b0011)]) == [(1141, (0, 1, 2, 3))]


def test_a_running_job_beyond_its_limit_is_expected_to_end_now() -> None:
    assert plans([(4, 50)], [Occupied(100, 200, 0b0011)]) == [(1061, (0, 1, 2, 3))]


def test_a_job_starts_before_an_earlier_one_if_it_ends_early_enough_on_each_of_its_nodes() -> None:
    busy = [Occupied(900, 500, 0b0111)]  # until 1461
    assert plans([(4, 50), (1, 400)], busy) == [(1461, (0, 1, 2, 3)), (1000, (3,))]  # 1000 + 400 + 60 + 1
    assert plans([(4, 50), (1, 401)], busy)[1] == (1572, (0,))


def test_a_job_is_planned_into_a_later_gap_only_if_the_gap_is_longer_than_the_shortest() -> None:
    """Node 3 is free from 1161 until 1461 or 1462."""
    for until, start, node in ((1461, 1572, 0), (1462, 1161, 3)):
        busy = [Occupied(900, until - 961, 0b0111), Occupied(900, 200, 0b1000)]
        assert plans([(4, 50), (1, 10)], busy)[1] == (start, (node,))


def test_a_job_starts_now_in_a_gap_of_any_length() -> None:
    busy = [Occupied(900, 140, 0b0111)]  # until 1101, and then all nodes
    assert plans([(4, 50), (1, 10)], busy)[1] == (1000, (3,))


# -- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_server_makes_each_pass_when_oar_did(name: str) -> None:
    recording = Recording.load(name)
    least = recording.policy.min_time_between_2_calls
    passes = [event for event in recording.server if event[2] == "pass"]
    late = [
        round(expected(recording.server, end, begin, least) - begin, 2)
        for (_, end, _), (begin, _, _) in pairwise(passes)
        if end > 0
    ]
    wrong = [each for each in late if abs(each) > LATE_S]
    assert len(wrong) <= len(late) * 0.06, wrong  # others are made while a second passes, or two checks delay them
    assert len(late) > 20


def expected(server: list[tuple[float, float, str]], ended: float, until: float, least: int) -> float:
    """Return the instant of the next pass after one that `ended`, from the commands `until` the recorded one."""
    here = Server(since=ended, last=int(ended))
    for at, _, command in server:
        if not ended <= at <= until or command == "pass":
            continue
        if here.next(least) < at:
            break
        here.since = at
        if command == "ChState":  # the server then looks whether a pass is wanted
            if here.wanted and int(at) >= here.last + least:
                return at
            continue
        here.command = SUBMISSION
        if here.due(at, least):
            return at
    return here.next(least)


def after_a_pass(command: float, least: int = 5) -> Server:
    """Return the server after a pass that `command` caused in second 100 and that ended at 100.4 s."""
    server = Server(since=90.0, last=50, command=command)
    assert server.due(100.0, least)
    server.passed(100.4, least)
    return server


def test_the_end_of_a_job_causes_another_pass_after_ten_seconds_and_a_submission_does_not() -> None:
    assert after_a_pass(END).next(5) == pytest.approx(110.4)
    assert after_a_pass(SUBMISSION).next(5) == pytest.approx(160.4)


def test_without_a_least_time_the_second_command_of_an_end_causes_a_pass_at_once() -> None:
    server = after_a_pass(END, least=0)
    assert server.due(100.4, 0)
    server.passed(100.8, 0)
    assert server.next(0) == pytest.approx(160.8)


def test_a_silent_server_makes_a_pass_each_minute() -> None:
    server = after_a_pass(SUBMISSION)
    server.skip(500.0, 0.4, 5)
    assert server.last == 462
    assert server.since == pytest.approx(160.4 + 5 * 60.4 + 0.4)
    assert server.next(5) == pytest.approx(522.8)


# -- the policy -------------------------------------------------------------------------------------------------------


def starts(rows: list[tuple[float, float, int]], nodes: int = 4, **options: Any) -> list[float]:
    """Return the starts of jobs with (submit, run time, nodes) and a limit of 1000 s."""
    parameters = {name: options.pop(name) for name in list(options) if name in Oar.__dataclass_fields__}
    table = pd.DataFrame(rows, columns=["submit_time", "run_time", "nodes"]).assign(time_limit=1000.0)
    table = table.assign(job_id=[str(number) for number in range(len(rows))], user=options.pop("user", "one"))
    run = tb.simulate(Workload(table), "oar", nodes, policy_parameters=parameters, speed=options.pop("run_at", 1.0))
    assert not options
    found: list[float] = run.jobs["start"].tolist()
    return found


def test_a_job_starts_at_the_whole_second_after_the_plan() -> None:
    assert starts([(0.3, 1, 1)]) == [1]
    assert starts([(0.9, 1, 1)]) == [2]  # the server plans 0.2 s after the command
    assert starts([(0.9, 1, 1)], epoch_s=0.5) == [1.5]


def test_a_job_submitted_soon_after_a_pass_waits_until_no_command_has_come_for_ten_seconds() -> None:
    assert starts([(0, 100, 1), (3, 100, 1)]) == [1, 14]
    assert starts([(0, 100, 1), (5, 100, 1)]) == [1, 6]
    assert starts([(0, 100, 1), (3, 100, 1)], min_time_between_2_calls=3) == [1, 4]


def test_a_job_submitted_soon_after_a_pass_starts_with_a_later_command() -> None:
    assert starts([(0, 100, 1), (3, 100, 1), (6, 100, 1)]) == [1, 7, 7]
    assert starts([(0, 7, 4), (3, 100, 1)]) == [1, 9]  # the end of the first one, at 8


def test_the_nodes_of_a_job_that_has_ended_are_used_by_the_next_pass() -> None:
    """The second job ends 2 s after the pass that the end of the first one causes."""
    assert starts([(0, 10, 2), (0, 12, 2), (1, 50, 2), (1, 50, 2)]) == [1, 1, 12, 24]


def test_a_pass_plans_the_first_jobs_of_each_user_and_the_next_one_is_a_minute_later() -> None:
    rows = [(0.0, 1000.0, 1)] * 31
    assert starts(rows, 40) == [1] * 30 + [61]
    assert starts(rows, 40, fairsharing_max_job_per_user=0) == [1] * 31
    assert starts(rows, 40, user=["one", "two", *["three"] * 29]) == [1] * 31


def test_without_a_least_time_each_command_causes_a_pass_when_the_last_one_has_ended() -> None:
    assert starts([(0, 100, 1), (3, 100, 1)], min_time_between_2_calls=0) == [1, 4]
    assert starts([(0, 100, 1), (0.3, 100, 1)], min_time_between_2_calls=0) == [1, 2]


def test_times_of_oar_are_wall_times() -> None:
    assert starts([(0, 2000, 1), (60, 2000, 1)], run_at=20.0) == [20, 280]
    with pytest.raises(InputError, match=r"oar\.speed is 2, but the speed of the run is 20"):
        starts([(0, 2000, 1)], run_at=20.0, speed=2.0)


@pytest.mark.parametrize("name", ["job_security_time", "call_s"])
def test_invalid_parameters_are_errors(name: str) -> None:
    with pytest.raises(InputError, match=f"oar.{name}"):
        Oar(**{name: -1})


@pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))
@pytest.mark.slow
def test_a_real_oar_plans_as_the_policy(tmp_path: Path) -> None:
    rows = [(0, 12, 6, 400), (0.5, 12, 3, 40), (1, 5, 9, 30), (2, 5, 2, 30), (7, 5, 4, 200), (8, 4, 1, 20)]
    table = pd.DataFrame(rows, columns=["submit_time", "run_time", "nodes", "time_limit"])
    table.assign(job_id=[str(number) for number in table.index]).to_csv(tmp_path / "jobs.csv", index=False)
    recording = Recording(record(tmp_path / "jobs.csv", 9, {"SCHEDULER_GANTT_HOLE_MINIMUM_TIME": "60"}))
    passes = list(recording.passes())
    assert [recording.modeled(here) for here in passes] == [here.planned for here in passes]
    assert {job for here in passes for job in here.planned} == set(recording.jobs)


# -- ten real runs of OAR on Grid'5000 (February 2016), with reservations of counts and of named nodes -----------------

REPLANNED = {"backfill_depth": 100_000}
"""OAR plans the whole queue again in each pass."""
PASS_S = 4.0
"""Interval of the passes, s."""
RULES: dict[str, tuple[str, dict[str, Any], float]] = {
    "easy, counts": ("easy", {}, 0.0),
    "easy, nodes": ("easy", {"reserve": "nodes"}, 0.0),
    "conservative, counts, passes": ("conservative", REPLANNED, PASS_S),
    "conservative, nodes, passes": ("conservative", REPLANNED | {"reserve": "nodes"}, PASS_S),
    "conservative, nodes, calls": ("conservative", REPLANNED | {"reserve": "nodes"}, 0.0),
    "oar, as 2.5.4": ("oar", {"min_time_between_2_calls": 0}, 0.0),
    "oar, as 2.5.9": ("oar", {}, 0.0),
}
"""Name -> policy, its parameters, and the interval of its calls, s."""


def runs(folder: Path) -> list[tuple[int, pd.DataFrame, pd.DataFrame]]:
    """Return (nodes, what OAR did, what Batsim predicted) of each real run, by job."""
    return [
        (nodes, *(_jobs(folder / f"g5k_workload_delay_seed{seed}_size{nodes}.{side}_jobs.csv") for side in _SIDES))
        for seed in range(5)
        for nodes in (34, 37)
    ]


_SIDES = ("real", "batsim")


def _jobs(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, index_col="jobID").sort_index()


def missed_s(
    cases: list[tuple[int, pd.DataFrame, pd.DataFrame]], policy: str, parameters: Mapping[str, Any], interval_s: float
) -> tuple[float, float]:
    """Return the mean error of the mean wait, s, with planned run times (those of Batsim) and with observed ones."""
    errors: dict[str, list[float]] = {"planned": [], "observed": []}
    for nodes, real, planned in cases:
        for track, run_times in (("planned", planned), ("observed", real)):
            table = pd.DataFrame(
                {
                    "job_id": real.index.astype(str),
                    "submit_time": real["submission_time"],
                    "run_time": run_times["execution_time"],
                    "time_limit": real["requested_time"],
                    "nodes": real["requested_number_of_processors"],
                    "kind": "rigid",
                }
            ).sort_values("submit_time", kind="stable")
            run = tb.simulate(Workload(table), policy, nodes, policy_parameters=dict(parameters), interval_s=interval_s)
            wait = (run.jobs["start"] - run.jobs["submit"]).mean()
            errors[track].append(abs(wait - real["waiting_time"].mean()))
    return sum(errors["planned"]) / len(cases), sum(errors["observed"]) / len(cases)


Cases = list[tuple[int, pd.DataFrame, pd.DataFrame]]


@pytest.fixture(scope="module")
def cases(reference_data: Callable[[str], Path]) -> Cases:
    return runs(reference_data("grid5000-2016-02"))


@pytest.mark.parametrize(
    ("rule", "errors"),
    [
        ("easy, counts", (5.31, 4.09)),
        ("conservative, counts, passes", (1.78, 1.49)),
        ("conservative, nodes, passes", (2.39, 0.93)),
        ("conservative, nodes, calls", (5.60, 3.10)),
        pytest.param("oar, as 2.5.4", (3.10, 2.00), marks=pytest.mark.slow),  # `test_oar_policy.py` is fast
        pytest.param("oar, as 2.5.9", (5.99, 6.79), marks=pytest.mark.slow),
    ],
)
def test_errors_of_the_mean_wait_of_oar(cases: Cases, rule: str, errors: tuple[float, float]) -> None:
    assert missed_s(cases, *RULES[rule]) == pytest.approx(errors, abs=5e-3)


def test_errors_of_the_mean_wait_that_batsim_predicted(cases: Cases) -> None:
    batsim = [abs(predicted["waiting_time"].mean() - real["waiting_time"].mean()) for _, real, predicted in cases]
    assert sum(batsim) / len(cases) == pytest.approx(25.84, abs=5e-3)


def main() -> int:
    """Print the table."""
    cases = runs(Path(sys.argv[1]))
    print(f"{'error of the mean wait, s':34}{'planned':>9}{'observed':>9}")  # noqa: T201
    for name, rule in RULES.items():
        planned, observed = missed_s(cases, *rule)
        print(f"{name:34}{planned:9.2f}{observed:9.2f}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
