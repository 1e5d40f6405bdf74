"""The policies: equal to the slow reference, within the guarantees of each, and as in the papers' examples."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import packages
from tests.oracles.drawn import MALLEABLE, POLICIES, PRIORITIES, draw
from tests.oracles.reference_scheduler import RefJob
from tests.runs import resize_rows
from tests.scheduling.test_scheduling import assert_same, nodes_held, simulated, workload_of
from tracebed.cli.simulate import simulate
from tracebed.converters.formats.writing import write_workload
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling import names
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.policies.conservative import Conservative
from tracebed.orchestrator.scheduling.policies.easy import Easy
from tracebed.orchestrator.scheduling.state import Decision, Reserve, State
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.simulator import Simulator

CORES = 4
SEEDS = st.integers(0, 2**32 - 1)
INSTALLED = st.sampled_from(registry.names())


def rigid(id: int, submit: float, nodes: int, run_time: float, limit: float | None = None) -> RefJob:
    return RefJob(id, submit, run_time, run_time if limit is None else limit, nodes)


def malleable(id: int, submit: float, run_time: float, low: int, pref: int, high: int) -> RefJob:
    """Return a job with linear speedup that requests its preferred size; its limit is its run time."""
    return RefJob(id, submit, run_time, run_time, pref, True, low, high, pref)


def starts(jobs: list[RefJob], machine: int, policy: str, **options: Any) -> list[float]:
    options |= {"calls": "event"} if policy in MALLEABLE else {}  # one call an event is what can be computed by hand
    assert_same(jobs, machine, policy, **options)  # the reference agrees with the hand-computed case
    return simulated(jobs, machine, policy, **options)[0].start


def resizes(jobs: list[RefJob], machine: int, policy: str, **options: Any) -> dict[int, list[tuple[float, int, int]]]:
    options |= {"calls": "event"} if policy in MALLEABLE else {}
    assert_same(jobs, machine, policy, **options)
    changes: dict[int, list[tuple[float, int, int]]] = {}
    for job, before, after, asked, *_ in resize_rows(simulated(jobs, machine, policy, **options)[0]):
        changes.setdefault(int(job), []).append((float(asked), int(before), int(after)))
    return changes


def predicted(jobs: list[RefJob], machine: int, policy: str, *, ids: list[str] | None = None, **options: Any) -> Run:
    workload = workload_of(jobs, cores_per_node=CORES, ids=ids)
    nodes = [NodeFacts(f"n{number}", CORES, 2) for number in range(machine)]
    return predict(workload, nodes, policy, name="drawn", engine="python", **options)


# -- the slow reference --------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(seed=SEEDS, policy=st.sampled_from(POLICIES))
def test_schedules_equal_the_reference_to_the_microsecond(seed: int, policy: str) -> None:
    case = draw(seed, policy)
    assert_same(case.jobs, case.machine, policy, **case.options)


SUSPENDING = ("max-min-fairness", "min-total-duration")
"""The policies under which a job that has begun may hold no node for a while."""

# -- invariants of every installed policy ---------------------------------------------------------------------------


@given(seed=SEEDS, policy=INSTALLED)
def test_cores_are_never_oversubscribed_bounds_are_kept_and_every_job_ends(seed: int, policy: str) -> None:
    case = draw(seed)
    options = {key: case.options[key] for key in ("interval_s", "malleability_interval_s", "priority")}
    run = predicted(case.jobs, case.machine, policy, **options)
    changes: dict[tuple[int, float], int] = {}
    for row in run.allocations.itertuples():
        for node in range(row.node, row.node + row.count):
            changes[node, row.start] = changes.get((node, row.start), 0) + row.cores
            changes[node, row.end] = changes.get((node, row.end), 0) - row.cores
    for _, steps in itertools.groupby(sorted(changes.items()), key=lambda change: change[0][0]):
        assert all(0 <= used <= CORES for used in itertools.accumulate(cores for _, cores in steps))
    held = staircases_of(run)
    for job, row in zip(case.jobs, run.jobs.itertuples(), strict=True):
        smallest, largest = bounds(job, policy)
        assert row.state == ("rejected" if smallest > case.machine else "completed")
        if row.state == "completed":
            assert job.submit <= row.start <= row.end
            for _, _, nodes, _ in held.get(job.id, []):
                assert smallest <= nodes <= largest or (policy in SUSPENDING and nodes == 0)


@given(seed=SEEDS, policy=INSTALLED)
def test_work_is_conserved(seed: int, policy: str) -> None:
    """The integral of the rate over a job's life is its run time at the requested size."""
    case = draw(seed)
    run = predicted(case.jobs, case.machine, policy, interval_s=case.options["interval_s"])
    held = staircases_of(run)
    for job, state in zip(case.jobs, run.jobs["state"], strict=True):
        if state == "completed":
            steps = held.get(job.id, [])
            rates = (
                (end - start) * rate(job, nodes, cores / (CORES * nodes)) for start, end, nodes, cores in steps if nodes
            )
            assert sum(rates) == pytest.approx(job.run_time, abs=1e-6)


def rate(job: RefJob, nodes: int, share: float) -> float:
    """Return the rate of a job on a share of the cores of its nodes: its serial part needs one core only."""
    whole = job.rate(nodes) if nodes != job.nodes else 1.0
    parallel = 1.0 if job.parallel_fraction is None else job.parallel_fraction
    serial = 1.0 - parallel
    return whole * (serial + parallel / nodes) / (serial + parallel / (nodes * share))


def bounds(job: RefJob, policy: str) -> tuple[int, int]:
    """Return the minimum and maximum number of nodes of `job`."""
    if not (job.malleable and registry.load(policy).malleable):
        return job.nodes, job.nodes
    return job.nodes_pref if policy == "keep-pref" else job.nodes_min, job.nodes_max


def staircases_of(run: Run) -> dict[int, list[tuple[float, float, int, int]]]:
    """Return job -> (from, to, nodes, total cores) for every interval of positive length."""
    changes: dict[int, dict[float, tuple[int, int]]] = {}
    for row in run.allocations.itertuples():
        of_job = changes.setdefault(int(row.job_id), {})
        for instant, sign in ((row.start, 1), (row.end, -1)):
            nodes, cores = of_job.get(instant, (0, 0))
            of_job[instant] = (nodes + sign * row.count, cores + sign * row.count * row.cores)
    stairs: dict[int, list[tuple[float, float, int, int]]] = {}
    for job, of_job in changes.items():
        nodes = cores = 0
        for start, end in itertools.pairwise(sorted(of_job)):
            nodes, cores = nodes + of_job[start][0], cores + of_job[start][1]
            stairs.setdefault(job, []).append((start, end, nodes, cores))
    return stairs


@given(seed=SEEDS, policy=INSTALLED, priority=st.sampled_from(PRIORITIES))
def test_job_ids_do_not_affect_the_schedule(seed: int, policy: str, priority: str) -> None:
    case = draw(seed)
    names = [f"{(7919 * job.id) % 1009:04d}" for job in case.jobs]
    one, other = (predicted(case.jobs, case.machine, policy, priority=priority, ids=ids) for ids in (None, names))
    for table in ("jobs", "allocations", "reconfigurations"):
        mine, theirs = getattr(one, table), getattr(other, table)
        translated = mine["job_id"].map({str(job.id): name for job, name in zip(case.jobs, names, strict=True)})
        pd.testing.assert_frame_equal(mine.assign(job_id=translated.astype(theirs["job_id"].dtype)), theirs)


@pytest.mark.parametrize("policy", registry.names())
def test_the_same_input_gives_the_same_bytes_under_every_policy(policy: str, tmp_path: Path) -> None:
    case = draw(20, policy="pref")
    for name in ("one", "two"):
        predicted(case.jobs, case.machine, policy, priority="aging").save(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["allocations.parquet", "jobs.parquet", "nodes.parquet", "reconfigurations.parquet", "run.json"]
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)


# -- guarantees ------------------------------------------------------------------------------------------------------


@given(seed=SEEDS, priority=st.sampled_from(PRIORITIES), reserve=st.sampled_from(["counts", "nodes"]))
def test_conservative_starts_no_job_later_than_first_reserved(
    seed: int, priority: str, reserve: Literal["counts", "nodes"]
) -> None:
    case = draw(seed, "conservative", limits_hold=True)
    first: dict[int, float] = {}

    @dataclass(frozen=True)
    class Watched(Conservative):
        def decide(self, state: State) -> Iterator[Decision]:
            for decision in super().decide(state):
                if isinstance(decision, Reserve) and decision.at < math.inf:
                    assert decision.at <= first.setdefault(decision.job, decision.at)
                yield decision

    record = Simulator(
        Jobs.of(workload_of(case.jobs)),
        [1] * case.machine,
        Watched(reserve=reserve),
        Setup.of("easy", priority=priority),
    ).run()
    assert all(record.start[job] <= at for job, at in first.items())


@given(seed=SEEDS, reserve=st.sampled_from(["counts", "nodes"]))
def test_easy_starts_no_head_later_than_its_first_shadow_time(seed: int, reserve: Literal["counts", "nodes"]) -> None:
    case = draw(seed, "easy", limits_hold=True)
    shadow: dict[int, float] = {}

    @dataclass(frozen=True)
    class Watched(Easy):
        def decide(self, state: State) -> Iterator[Decision]:
            yield from super().decide(state)
            head = state.queue.head
            if head is not None and state.jobs.nodes[head] > state.idle:
                at, extra = state.reservation(state.jobs.nodes[head])
                assert extra >= 0
                assert at <= shadow.setdefault(head, at)  # a later call must not delay it either

    record = Simulator(Jobs.of(workload_of(case.jobs)), [1] * case.machine, Watched(reserve=reserve)).run()
    assert all(record.start[job] <= at for job, at in shadow.items())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_large_job_starves_only_without_reservations(policy: str) -> None:
    """4 nodes. The large job needs all; two small jobs of 10 s arrive every 5 s, so 4 are never idle by chance."""
    submissions = sorted([*((5.0 * (number // 2), 1) for number in range(200)), (7.0, 4)])
    jobs = [rigid(number, submit, nodes, 10.0) for number, (submit, nodes) in enumerate(submissions)]
    start = starts(jobs, 4, policy)[submissions.index((7.0, 4))]
    assert start == (505.0 if policy == "firstfit" else 15.0)


@given(seed=SEEDS)
def test_fcfs_starts_in_the_order_of_submission(seed: int) -> None:
    case = draw(seed, "fcfs")
    record, _ = simulated(case.jobs, case.machine, "fcfs")
    started = [start for start in record.start if not math.isnan(start)]
    assert started == sorted(started)


# -- computed by hand ------------------------------------------------------------------------------------------------


def test_easy_backfills_by_the_two_conditions_of_lifka() -> None:
    """9 nodes; 0 holds 5 until 100, 1 needs 7: shadow 100, 2 extra. 2 is long but narrow, 3 short, 4 neither."""
    jobs = [rigid(0, 0, 5, 100), rigid(1, 1, 7, 50), rigid(2, 2, 2, 900), rigid(3, 3, 1, 97), rigid(4, 4, 1, 97)]
    assert starts(jobs, 9, "easy") == [0, 100, 2, 3, 150]
    assert starts(jobs, 9, "fcfs") == [0, 100, 100, 150, 150]


def test_easy_lets_the_second_in_the_queue_be_delayed_and_conservative_does_not() -> None:
    """4 nodes. Job 3 takes the node that the reservation of 1 leaves, for so long that it delays 2, which needs all."""
    jobs = [rigid(0, 0, 2, 10), rigid(1, 1, 3, 10), rigid(2, 2, 4, 10), rigid(3, 3, 1, 100)]
    assert starts(jobs, 4, "easy") == [0, 10, 103, 3]
    assert starts(jobs, 4, "conservative") == [0, 10, 20, 30]
    assert starts(jobs, 4, "firstfit") == [0, 10, 103, 3]


@pytest.mark.parametrize(
    ("policy", "passes"),
    [
        ("easy", {}),
        ("conservative", {}),
        ("conservative", {"backfill_depth": 9}),
        ("conservative", {"backfill_interval_s": 1.0}),
    ],
)
def test_a_reservation_of_named_nodes_keeps_an_idle_node_of_the_set(policy: str, passes: dict[str, Any]) -> None:
    """4 nodes. Job 2 needs 3 at 100, when 4 are idle: 0, 1, 2. From 5 on node 0 is idle.

    Job 3 is too long for it, although a node is left over by number. Job 4 ends exactly at 100.
    """
    jobs = [rigid(0, 0, 1, 5), rigid(1, 0, 3, 100), rigid(2, 1, 3, 10), rigid(3, 6, 1, 900), rigid(4, 8, 1, 92)]
    assert starts(jobs, 4, policy, **passes) == [0, 0, 100, 6, 110]
    record, simulator = simulated(jobs, 4, policy, reserve="nodes", **passes)
    assert list(record.start) == [0, 0, 100, 100, 8]
    assert nodes_held(simulator) == {0: [0], 1: [1, 2, 3], 2: [0, 1, 2], 3: [3], 4: [0]}


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_named_nodes_are_the_lowest_under_every_placement(policy: str) -> None:
    jobs = [rigid(number, number, 1 + number % 3, 10.0 + number) for number in range(12)]
    held = [
        nodes_held(simulated(jobs, 8, policy, reserve="nodes", **options)[1])
        for options in ({"placement": "first"}, {"placement": "leak", "grid": "2x4"})
    ]
    assert held[0] == held[1]
    assert held[0] != nodes_held(simulated(jobs, 8, policy, placement="leak", grid="2x4")[1])


def test_slurm_backfill_has_a_depth_and_an_interval() -> None:
    """4 nodes. Job 2 could start beside 0 when it is submitted, at 5, without delaying 1."""
    jobs = [rigid(0, 0, 3, 100), rigid(1, 1, 4, 10), rigid(2, 5, 1, 20)]
    assert starts(jobs, 4, "conservative") == [0, 100, 5]
    assert starts(jobs, 4, "conservative", backfill_depth=2) == [0, 100, 5]
    assert starts(jobs, 4, "conservative", backfill_depth=1) == [0, 100, 110]
    assert starts(jobs, 4, "conservative", backfill_interval_s=30.0) == [0, 100, 30]  # the pass at 30
    assert starts(jobs, 4, "conservative", backfill_interval_s=30.0, interval_s=20.0) == [0, 100, 40]


FAMILY = [malleable(0, 0, 1000, 2, 4, 8), malleable(1, 0, 1000, 2, 4, 6), rigid(2, 10, 1, 1), rigid(3, 20, 5, 10)]
"""10 nodes. Two malleable jobs start at 0. They grow at 10 and, when 2 ends, at 11. At 20, 3 needs 5 nodes."""


def resizes_until_20(policy: str) -> dict[int, list[tuple[float, int, int]]]:
    return {job: [step for step in steps if step[0] <= 20] for job, steps in resizes(FAMILY, 10, policy).items()}


def test_pref_starts_and_stays_near_the_preferred_size() -> None:
    """Equation 2. A node becomes idle at 10 and at 11; each goes to the job with the smallest excess over 4 nodes.

    At 20, job 3 needs 5 nodes. The two nodes above the preferred sizes are too few; down to the minimum, each job can
    give 3: the first gives all 3, the second gives the rest.
    """
    assert starts(FAMILY, 10, "pref") == [0, 0, 10, 20]
    assert resizes_until_20("pref") == {0: [(10, 4, 5), (20, 5, 2)], 1: [(11, 4, 5), (20, 5, 3)]}


def test_a_delayed_job_may_start_on_fewer_nodes_after_others_have_started() -> None:
    """5 nodes. The head 1 is reserved for 100, with one extra node. On 2 of the 3 idle nodes, 2 would delay it.

    Then 3, which ends in time, leaves one node idle, on which 2 can start. The policy must try 2 again when 4 is
    submitted, although no node has been released (seed 80005178 of `drawn.py`).
    """
    jobs = [rigid(0, 0, 2, 100), rigid(1, 0, 4, 10), malleable(2, 0, 1000, 1, 2, 2), rigid(3, 0, 2, 50)]
    jobs.append(rigid(4, 1, 5, 1))
    assert starts(jobs, 5, "pref")[:4] == [0, 100, 1, 0]
    nodes = [NodeFacts(f"n{number}", 1) for number in range(5)]
    assert predict(workload_of(jobs), nodes, "pref", policy_parameters={"calls": "event"}).jobs["start"][2] == 1.0
    assert predict(workload_of(jobs), nodes, "pref").jobs["start"][2] == 0.0  # in the second call at 0


def test_keep_pref_shrinks_no_job_below_the_preferred_size() -> None:
    """The two nodes above the preferred sizes are too few for 5, so no job is shrunk and 3 waits."""
    assert resizes_until_20("keep-pref") == {0: [(10, 4, 5)], 1: [(11, 4, 5)]}
    assert starts(FAMILY, 10, "keep-pref")[3] > 500
    smaller = [*FAMILY[:3], rigid(3, 20, 2, 10)]
    assert starts(smaller, 10, "keep-pref")[3] == 20
    asks_for_more = [rigid(0, 0, 7, 10), malleable(1, 0, 10, 2, 4, 8)]  # 3 idle nodes would be enough for its minimum
    assert starts(asks_for_more, 10, "keep-pref") == [0, 10]
    assert starts(asks_for_more, 10, "pref") == [0, 0]


def test_min_starts_small_and_resizes_as_few_jobs_as_it_can() -> None:
    """Equation 1. At 10 all 5 idle nodes go to the first job; at 20 it gives the 5 back, down to its minimum."""
    assert starts(FAMILY, 10, "min") == [0, 0, 10, 20]
    assert resizes_until_20("min") == {0: [(10, 2, 7), (20, 7, 2)], 1: [(11, 2, 3)]}


def test_avg_shares_node_by_node_by_the_part_of_the_range() -> None:
    """Equation 3. The 5 idle nodes at 10 go 0: 1/6, 1: 1/4, 0: 2/6, 1: 2/4, 0: 3/6; at 11 a tie goes to the first.

    At 20 they are released 0: 3/6, 0 (tie: the first): 2/6, 1: 1/4, 0: 1/6, 1: 0.
    """
    assert starts(FAMILY, 10, "avg") == [0, 0, 10, 20]
    assert resizes_until_20("avg") == {0: [(10, 2, 5), (11, 5, 6), (20, 6, 3)], 1: [(10, 2, 4), (20, 4, 2)]}


@pytest.mark.parametrize(("promise", "expected"), [("pool", [13, 15]), ("direct", [20, 13]), ("steal", [13, 20])])
def test_promises_by_direct_steal_and_pool(promise: str, expected: list[float]) -> None:
    """At 11 job 0 is shrunk for 3, effective at 20, and 2 for 4, effective at 13; job 1 ends at 15 without a promise.

    direct: each promise waits for its own nodes. steal: at 13 the first promise takes the nodes of the second in
    exchange for its own at 20. pool: promises take any released nodes, at 13 and 15.
    """
    jobs = [malleable(0, 0, 400, 1, 4, 4), rigid(1, 0, 3, 15), malleable(2, 3, 400, 1, 4, 4)]
    jobs += [rigid(3, 11, 3, 50), rigid(4, 11, 3, 50)]
    assert starts(jobs, 11, "pref", promise=promise, malleability_interval_s=10.0)[3:] == expected


@pytest.mark.parametrize(
    ("priority", "order"),
    [
        ("fcfs", [1, 2, 3, 4]),
        ("shortest-first", [3, 1, 4, 2]),
        ("largest-slowdown-first", [3, 1, 2, 4]),  # wait/limit: at 100 60/1, at 101 99/30, at 131 128/60 and 41/31
        ("aging", [4, 1, 2, 3]),  # the full machine's size is worth two days of waiting
    ],
)
def test_priorities_order_the_queue(priority: str, order: list[int]) -> None:
    """Job 0 holds all 4 nodes until 100; then only one of the other jobs fits at a time."""
    jobs = [rigid(0, 0, 4, 100), rigid(1, 2, 3, 30), rigid(2, 3, 3, 60), rigid(3, 40, 3, 1), rigid(4, 90, 4, 30, 31)]
    record = starts(jobs, 4, "fcfs", priority=priority)
    assert sorted(order, key=lambda job: record[job]) == order


def test_the_help_names_every_policy() -> None:
    text = re.sub(r"-\n +", "-", CliRunner().invoke(simulate, ["--help"]).output)  # a line may end within a name
    assert not [name for name in registry.names() if not re.search(rf"\b{name}\b", text)]


def test_the_command_offers_every_priority() -> None:
    (option,) = [option for option in simulate.params if option.name == "priority"]
    assert list(option.type.choices) == list(names.PRIORITIES)  # type: ignore[attr-defined]
    run = predicted([rigid(0, 0, 1, 1)], 1, "easy", priority="aging")
    assert run.info.settings["priority"] == "aging"


def test_a_policy_is_a_name_a_class_or_an_instance() -> None:
    @dataclass
    class Own:
        patience_s: float = 1.0
        malleable: ClassVar[bool] = False

        def decide(self, state: State) -> Iterator[Decision]:
            yield from ()

    assert registry.resolve("conservative") == ("conservative", Conservative())
    assert registry.resolve(Conservative) == ("conservative", Conservative())
    assert registry.resolve(Conservative()) == ("conservative", Conservative())
    assert registry.resolve(Own, {"patience_s": "3"}) == ("Own", Own(3.0))
    assert registry.resolve(Own(2.0)) == ("Own", Own(2.0))
    with pytest.raises(InputError, match="parameters are given for an instance of policy Own"):
        registry.resolve(Own(2.0), {"patience_s": "3"})
    with pytest.raises(InputError, match="RefJob is not a policy"):
        registry.resolve(RefJob)  # type: ignore[arg-type]


# -- third-party policies --------------------------------------------------------------------------------------------

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-a-policy.md"


def test_the_policy_of_the_guide_installs_from_its_own_package_and_runs(tmp_path: Path) -> None:
    files = packages.files_of(GUIDE)
    assert set(files) == {"bestfit.py", "admit.py", "pyproject.toml"}
    site = packages.install(tmp_path / "guide", files)

    jobs = [rigid(0, 0, 3, 10), rigid(1, 1, 4, 10), rigid(2, 2, 1, 30), rigid(3, 3, 1, 5)]
    write_workload(workload_of(jobs), tmp_path / "w.parquet")
    arguments = "simulate w.parquet --policy best-fit --nodes 4 -o run -P patience_s=9"
    done = packages.tracebed(site, *arguments.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.load(tmp_path / "run")
    assert run.info.policy_parameters == {"patience_s": 9.0}
    assert run.jobs["start"].tolist() == [0.0, 32.0, 2.0, 42.0]  # from 10 on only 1, the head, may start
    done = packages.tracebed(site, *arguments.replace("=9", "=-1").split(), "--replace", cwd=tmp_path)
    said = "best-fit.patience_s is -1 (give seconds of at least 0)"
    assert (done.returncode, done.stderr) == (2, f"tracebed: {said}\n")
    assert said in GUIDE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("policy", "parameters", "without_effect"),
    [
        ("drom-share", {"mode": "serial", "split": "asked"}, "drom-share.split"),
        *[(name, {"backfill": "firstfit", "narrow": "yes"}, "narrow") for name in ("pref", "keep-pref", "min", "avg")],
        ("sd", {"bf_window": "60"}, "sd.bf_window"),
    ],
)
def test_a_parameter_that_cannot_have_an_effect_is_an_error(
    policy: str, parameters: dict[str, str], without_effect: str
) -> None:
    with pytest.raises(InputError, match=f"{without_effect}.*(no effect|need)"):
        registry.load(policy, parameters)
