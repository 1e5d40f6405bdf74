"""Evolving jobs: they ask for nodes at shares of their work, and get the nodes or do not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.redecided import complete_budget, decided, decided_again, emulated, virtual
from tests.oracles.survival import KEEP, Case, assert_every_job_ended_once, count
from tests.runs import replaying
from tracebed.converters.malleability import to_malleable
from tracebed.converters.requests import Request, format_requests, parse_requests
from tracebed.converters.workload import Kind, Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies.leak import Leak
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.validation.budget.steps import RealRun
from tracebed.validation.metrics import MeasuredRun, metrics
from tracebed.validation.verdict.rates import paired_rates

COLUMNS = ["submit_time", "run_time", "nodes", "nodes_min", "nodes_max", "requests", "deadline"]
Row = tuple[float, float, int, int, int, str, float]


def asking(rows: list[Row]) -> Workload:
    """Return jobs with linear speedup. A job without requests is rigid."""
    table = pd.DataFrame(rows, columns=COLUMNS)
    kind = np.where(table["requests"] != "", "evolving", "rigid")
    ids = [str(job) for job in range(len(rows))]
    return Workload(table.assign(job_id=ids, nodes_pref=table["nodes"], cores_per_node=1, kind=kind, speedup="linear"))


def sizes(run: Run, job: object) -> list[tuple[float, float, int]]:
    """Return the (start, end, number of nodes) of a job, one for each size."""
    rows = run.allocations[(run.allocations["job_id"] == str(job)).to_numpy()]
    found: list[tuple[float, float, int]] = []
    for start, end in itertools.pairwise(sorted({*rows["start"], *rows["end"]})):
        nodes = int(rows["count"][(rows["start"] <= start) & (end <= rows["end"])].sum())
        if found and found[-1][2] == nodes and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, end, nodes))
    return found


def answers(run: Run) -> list[tuple[str, float, int, int, str]]:
    """Return the (job, time, nodes asked, nodes after, state) of all requests."""
    rows = run.requests
    after = np.where(rows["state"] == "denied", rows["nodes_from"], rows["nodes_to"]).tolist()
    columns = [rows[name].tolist() for name in ("job_id", "asked", "nodes_asked")]
    return list(zip(*columns, after, rows["state"].tolist(), strict=True))


# -- the column ----------------------------------------------------------------------------------------------------


def test_requests_are_read_from_text_and_written_again() -> None:
    found = parse_requests(" 0.25:6  0.5:2 ")
    assert found == (Request(0.25, 6), Request(0.5, 2))
    assert parse_requests(format_requests(found)) == found
    assert parse_requests("") == ()


@pytest.mark.parametrize("text", ["6", "0.5:", ":6", "0:6", "1:6", "nan:6", "0.5:0", "0.5:2.5", "0.5:2:1", "a:b"])
def test_an_invalid_request_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="invalid request"):
        parse_requests(text)


def test_shares_that_do_not_ascend_are_an_error() -> None:
    with pytest.raises(InputError, match="do not ascend"):
        parse_requests("0.5:2 0.5:3")


def test_a_workload_with_an_invalid_request_names_the_row() -> None:
    with pytest.raises(InputError, match=r"row 1.*|invalid request") as raised:
        asking([(0.0, 100.0, 2, 1, 4, "half:4", math.nan)])
    assert "row 1" in str(raised.value)
    with pytest.raises(InputError, match="above nodes_max"):
        asking([(0.0, 100.0, 2, 1, 4, "0.5:5", math.nan)])


def test_a_share_is_reached_at_the_end_of_an_iteration() -> None:
    assert [Request(0.5, 1).point(iterations) for iterations in (1, 2, 3, 10)] == [1, 1, 2, 5]
    assert Request(0.1 + 0.2, 1).point(10) == 3  # not 4 because of a rounding error


def test_conversion_gives_all_sizes_and_requests_within_them() -> None:
    work = asking([(float(job), 100.0, 1 + job % 5, 1 + job % 5, 1 + job % 5, "", math.nan) for job in range(20)])
    made = to_malleable(work, 0.5, 1, nodes=16, kind=Kind.EVOLVING, phases=2)
    asks = made.table[(made.table["kind"] == "evolving").to_numpy()]
    assert len(asks) == 10
    for row in asks.itertuples():
        wanted = parse_requests(str(row.requests))
        assert [request.share for request in wanted] == [0.125, 0.375, 0.625, 0.875]
        forks, joins = [r.nodes for r in wanted[::2]], [r.nodes for r in wanted[1::2]]
        assert all(row.nodes <= nodes <= row.nodes_max for nodes in forks)
        assert all(row.nodes_min <= nodes <= row.nodes for nodes in joins)
    assert set(made.table["requests"][(made.table["kind"] != "evolving").to_numpy()]) == {""}


# -- simulation, worked by hand ------------------------------------------------------------------------------------


def test_a_job_gets_idle_nodes_and_gives_them_back() -> None:
    """Half of the work takes 50 s on 2 nodes, a quarter 12.5 s on 4, the last quarter 50 s on 1."""
    run = predict(asking([(0.0, 100.0, 2, 1, 4, "0.5:4 0.75:1", math.nan)]), 4, "leak")
    assert sizes(run, 0) == [(0.0, 50.0, 2), (50.0, 62.5, 4), (62.5, 112.5, 1)]
    assert answers(run) == [("0", 50.0, 4, 4, "applied"), ("0", 62.5, 1, 1, "applied")]
    assert metrics(run)["granted_rate"] == 1.0
    assert run.jobs["state"][0] == "completed"


def test_a_job_goes_on_with_its_nodes_if_it_gets_none() -> None:
    work = asking([(0.0, 100.0, 2, 1, 4, "0.5:4", math.nan), (0.0, 200.0, 2, 2, 2, "", math.nan)])
    run = predict(work, 4, "leak")
    assert sizes(run, 0) == [(0.0, 100.0, 2)]
    assert answers(run) == [("0", 50.0, 4, 2, "denied")]
    assert run.resizes.empty


def test_a_denied_request_is_not_granted_later() -> None:
    """The other job ends 10 s after the request. A malleable job would take its nodes then."""
    work = asking([(0.0, 100.0, 2, 1, 4, "0.5:4", math.nan), (0.0, 60.0, 2, 2, 2, "", math.nan)])
    assert sizes(predict(work, 4, "leak"), 0) == [(0.0, 100.0, 2)]


def test_a_job_gets_a_part_of_what_it_asks_for() -> None:
    work = asking([(0.0, 100.0, 2, 1, 4, "0.5:4", math.nan), (0.0, 200.0, 1, 1, 1, "", math.nan)])
    run = predict(work, 4, Leak(contiguous=False))
    assert answers(run) == [("0", 50.0, 4, 3, "applied")]
    assert metrics(run)["granted_rate"] == 0.0
    assert sizes(run, 0) == [(0.0, 50.0, 2), (50.0, pytest.approx(50 + 50 / 1.5), 3)]


def test_a_request_during_a_resize_is_answered_after_it() -> None:
    """The expansion of 50 s takes effect at 70 s; the request at 60 s waits for it. On 4 nodes, 30 s of work remain."""
    work = asking([(0.0, 100.0, 2, 1, 4, "0.5:4 0.6:1", math.nan)])
    run = predict(work, 4, "leak", overheads=Overheads(expand_s=20.0))
    assert sizes(run, 0) == [(0.0, 50.0, 2), (50.0, 70.0, 4), (70.0, 130.0, 1)]


def test_a_request_for_the_present_size_is_neither_granted_nor_denied() -> None:
    run = predict(asking([(0.0, 100.0, 2, 1, 4, "0.25:2 0.5:4", math.nan)]), 4, "leak")
    assert answers(run) == [("0", 50.0, 4, 4, "applied")]


def test_a_request_for_the_size_to_come_withdraws_the_one_that_waits() -> None:
    """The expansion to 4 nodes takes effect at 70 s. The request for 1 node waits for it, until that for 4 nodes."""
    work = asking([(0.0, 100.0, 2, 1, 4, "0.5:4 0.6:1 0.65:4", math.nan)])
    run = predict(work, 4, "leak", overheads=Overheads(expand_s=20.0))
    assert sizes(run, 0) == [(0.0, 50.0, 2), (50.0, 85.0, 4)]
    assert answers(run) == [("0", 50.0, 4, 4, "applied")]


def test_requests_at_one_malleability_point_are_one_request() -> None:
    """Iterations end at 50 and 100 s. The job asks for 3 nodes at 50 s, too late: the next point is its end."""
    work = asking([(0.0, 100.0, 2, 1, 4, "0.2:4 0.4:3 0.8:1", math.nan)])
    run = predict(work, 4, "leak", overheads=Overheads(grain_s=50.0))
    assert answers(run) == [("0", 50.0, 3, 3, "cancelled")]
    assert run.jobs["end"][0] == 100.0


def test_under_a_policy_that_hears_no_requests_the_jobs_are_rigid() -> None:
    run = predict(asking([(0.0, 100.0, 2, 1, 4, "0.5:4", math.nan)]), 4, "easy")
    assert run.jobs["end"][0] == 100.0
    assert run.requests.empty
    assert any("handles no requests" in warning for warning in run.info.warnings)


def test_a_job_is_cancelled_at_its_deadline_with_a_request_to_come() -> None:
    run = predict(asking([(0.0, 100.0, 2, 1, 4, "0.25:1 0.5:4", 60.0)]), 4, "leak")
    assert run.jobs["state"][0] == "cancelled"
    assert run.jobs["end"][0] == 60.0
    assert answers(run) == [("0", 25.0, 1, 1, "applied")]


# -- properties ----------------------------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Return evolving and rigid jobs, some with deadlines."""
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 8))):
        submit, run_time = draw(st.integers(0, 200)), draw(st.integers(10, 200))
        high = draw(st.integers(1, 6))
        low = draw(st.integers(1, high))
        shares = sorted(draw(st.sets(st.integers(1, 19), max_size=4)))
        wanted = tuple(Request(share / 20, draw(st.integers(low, high))) for share in shares)
        deadline = draw(st.one_of(st.just(math.nan), st.integers(submit + 1, submit + 400)))
        rows.append(
            (submit, run_time, draw(st.integers(low, high)), low, high, format_requests(wanted), float(deadline))
        )
    return asking(rows)


@given(workloads(), st.sampled_from([0.0, 7.0]), st.booleans())
def test_work_is_conserved_and_each_request_is_answered_once(work: Workload, grain_s: float, contiguous: bool) -> None:
    """The nodes that a job holds, over time, do its work: an independent account of what the simulator computes."""
    run = predict(work, 6, Leak(contiguous), overheads=Overheads(grain_s=grain_s), placement="leak", grid="2x3")
    for job, row in enumerate(run.jobs.itertuples()):
        held = sizes(run, row.job_id)
        requested = work.table["nodes"][job]
        if row.state == "completed" and not grain_s:
            done = sum((end - start) * nodes / requested for start, end, nodes in held)
            assert done == pytest.approx(row.run_time)
        of_job = [answer for answer in answers(run) if answer[0] == row.job_id]
        assert len(of_job) <= len(parse_requests(work.table["requests"][job]))
        for _, at, wanted, after, state in of_job:
            if state == "denied":
                before = next(nodes for start, end, nodes in held if start <= at <= end)
                assert before != wanted
            else:
                assert min(wanted, after) >= 1
                assert after <= max(wanted, next(nodes for start, end, nodes in held if start <= at <= end))
    holds = [(row.node + n, row.start, row.end) for row in run.allocations.itertuples() for n in range(row.count)]
    for (node, _, end), (other, start, _) in itertools.pairwise(sorted(holds)):
        assert node != other or end <= start


# -- replays -------------------------------------------------------------------------------------------------------


def evolving_workload(jobs: int) -> Workload:
    """Return `jobs` evolving jobs with deadlines, for 6 nodes."""
    rng = np.random.default_rng(5)
    rows: list[Row] = []
    for job in range(jobs):
        nodes, run_time = int(rng.integers(1, 4)), float(rng.integers(60, 200))
        wanted = (Request(0.25, int(rng.integers(nodes, 6))), Request(0.75, int(rng.integers(1, nodes + 1))))
        rows.append((20.0 * job, run_time, nodes, 1, 6, format_requests(wanted), 20.0 * job + 1.6 * run_time))
    return asking(rows)


@pytest.mark.parametrize("testbed", [emulated, virtual])
def test_requests_of_a_replay_are_answered_and_its_jobs_paired_with_those_of_a_simulation(
    testbed: Callable[..., Inventory], tmp_path: Path
) -> None:
    """16 jobs on 2 x 3 nodes: requests are granted and denied, and the journal gives the same decisions."""
    work, nodes, options = evolving_workload(16), testbed(6, cores=1), replaying(200.0, placement="leak", grid="2x3")
    real = replay(work, nodes, "leak", tmp_path / "run", **options)
    rows = real.requests
    assert {"applied", "denied"} <= set(rows["state"])
    assert (rows["nodes_asked"] >= 1).all()
    assert (rows["nodes_to"][rows["state"] != "denied"] <= 6).all()
    jobs = Jobs.of(work, evolving=True)
    path = tmp_path / "run" / JOURNAL
    assert decided_again(path, jobs, nodes, Leak(), options) == decided(path)
    again = Run.load(tmp_path / "run")
    pd.testing.assert_frame_equal(again.requests, rows)
    if testbed is emulated:
        requests = RealRun.load(tmp_path / "run").observed.requests
        assert sum(map(len, requests.values())) >= len(rows)
    predicted = predict(work, 6, "leak", placement="leak", grid="2x3")
    rates = {rate.name: rate for rate in paired_rates(MeasuredRun(real), MeasuredRun(predicted))}
    assert rates["in_time_rate"].jobs == 16  # how many of them are in time depends on the load of this machine


def test_a_replay_under_another_policy_lets_evolving_jobs_run_as_rigid(tmp_path: Path) -> None:
    work = evolving_workload(4)
    run = replay(work, emulated(6, cores=1), "easy", tmp_path / "run", **replaying(400.0))
    assert set(run.jobs["state"]) == {"completed"}
    assert run.reconfigurations.empty


@pytest.mark.slow
def test_the_error_budget_of_evolving_jobs_is_complete(tmp_path: Path) -> None:
    """With all causes removed, the simulation makes the requests at the times of the replay, and ends as it did."""
    work = evolving_workload(12)
    replay(work, emulated(6, cores=1), "leak", tmp_path / "run", **replaying(200.0, placement="leak", grid="2x3"))
    complete_budget(work, tmp_path / "run")


INVENTORY = """
grain_s: 0.02
heartbeat_s: 0.2
linger_s: 120
nodes:
  - {name: "n[1-6]", cores: 1, emulated: true}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_is_left")
def test_a_replay_of_evolving_jobs_that_is_killed_and_resumed_answers_each_request_once(tmp_path: Path) -> None:
    work = Workload(evolving_workload(16).table.drop(columns="deadline"))  # without deadlines, no job is rejected
    options = replaying(100.0, placement="leak", grid="2x3")
    case = Case(tmp_path, work, INVENTORY, "--speed", "100", "--policy", "leak", "--grid", "2x3")
    try:
        for requests in (2, 5, 8):
            process = case.start("--resume", hook=KEEP)
            case.wait_until(process, count("request", requests))
            case.kill(process)
        run = case.finish(case.start("--resume", hook=KEEP))
    finally:
        case.end()
    path = tmp_path / "run" / JOURNAL
    entries = journal.read(path)[1]
    assert_every_job_ended_once(run, entries)
    assert len(run.info.pauses) == 3
    asked = [(entry.job, entry.data["nodes"]) for entry in entries if entry.kind == "asks"]
    assert (
        14 <= len(asked) == len({(entry.job, entry.data["n"], entry.node) for entry in entries if entry.kind == "asks"})
    )
    assert len(asked) <= sum(len(parse_requests(text)) for text in work.table["requests"])
    jobs = Jobs.of(work, evolving=True)
    assert decided_again(path, jobs, emulated(6, cores=1), Leak(), options) == decided(path)
