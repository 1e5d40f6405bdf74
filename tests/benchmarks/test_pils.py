"""A PILS job without agent or testbed: the test forks the ranks and connects them over both kinds of socket."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import GUARD_S, patience
from tracebed.benchmarks import kernels, workers
from tracebed.benchmarks.applications.kernels import Pils
from tracebed.benchmarks.clock import SteadyClock
from tracebed.benchmarks.connections import tune
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.leader import run as run_rank
from tracebed.benchmarks.lines import encode
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.program import TASKS, Launch, Program, deal, split
from tracebed.ground.errors import InputError

CPUS = sorted(os.sched_getaffinity(0))
CPU = CPUS[0]


class Rank:
    """A forked rank and the agent's end of its pipe."""

    def __init__(self, launch: Launch, run: Callable[[Launch, socket.socket], int]) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(GUARD_S)
        self.lines = self.control.makefile("rb")
        self.heard: list[dict[str, Any]] = []
        path = launch.folder / f"{launch.rank}.{time.monotonic_ns()}.cpus"
        self.administrator = Administrator(NodeTable.create(path, {*range(4), *CPUS}))
        self.cpus = launch.cpus
        context = multiprocessing.get_context("fork")
        prepared = context.Event()

        def main() -> None:
            prepared.wait()
            os._exit(run(launch._replace(table=path), theirs))

        self.process = context.Process(target=main)
        self.process.start()
        assert self.process.pid is not None
        assert not self.administrator.prepare(self.process.pid, launch.cpus)[0].error
        prepared.set()
        theirs.close()

    def set_mask(self, cpus: Sequence[int]) -> None:
        assert self.process.pid is not None
        self.cpus = tuple(cpus)
        self.administrator.set_mask(self.process.pid, cpus)
        self.tell(type="poll")

    def hear(self, *kinds: str) -> dict[str, Any]:
        """Return the next message of one of these kinds."""
        while True:
            self.heard.append(json.loads(self.lines.readline()))
            if self.heard[-1]["type"] in kinds:
                return self.heard[-1]

    def tell(self, **message: Any) -> None:
        self.control.sendall(encode(message))

    def join(self) -> int | None:
        self.process.join(GUARD_S)
        self.lines.close()
        self.control.close()
        return self.process.exitcode


def launch(rank: str, program: Program, folder: Path, **changes: Any) -> Launch:
    fields: dict[str, Any] = {
        "job": "1",
        "rank": rank,
        "leader": rank == "a",
        "members": ("a", "b"),
        "family": "AF_UNIX",
        "address": str(folder / "s"),
        "authkey": b"key",
        "cpus": (CPU,),
        "program": program,
        "duty": 0.0,
        "folder": folder,
    }
    return Launch(**(fields | changes))


@given(st.integers(0, 10**12), st.integers(1, 300))
def test_shares_add_up_and_differ_by_one_at_most(total: int, parts: int) -> None:
    shares = [split(range(7, 7 + total), parts, index) for index in range(parts)]
    assert shares[0].start == 7 and shares[-1].stop == 7 + total
    assert all(one.stop == two.start for one, two in itertools.pairwise(shares))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.floats(0.01, 1000), st.integers(1, 64), st.integers(1, 64), st.floats(0, 1), st.floats(1e5, 1e7))
def test_the_run_time_of_a_program_follows_amdahl(
    seconds: float, nodes: int, cores: int, fraction: float, rate: float
) -> None:
    program = Program.lasting(seconds, nodes, cores, rate, parallel_fraction=fraction)

    def takes(n: int) -> float:
        return (program.serial_units + program.parallel_units / (n * cores)) / rate

    assert takes(nodes) == pytest.approx(seconds, abs=2 / rate)
    assert takes(3) == pytest.approx(takes(1) * (1 - fraction + fraction / 3), abs=4 / rate)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"serial_units": -1}, "serial_units is -1"),
        ({"parallel_units": 1.5}, "parallel_units is 1.5"),
        ({"iterations": 0}, "iterations is 0"),
        ({"chunks": True}, "chunks is True"),
        ({"balance": "fair"}, "balance is 'fair'"),
        ({"rate": 0}, "rate is 0"),
        ({"iterations": None}, "iterations is None"),
    ],
)
def test_a_wrong_program_is_refused(change: dict[str, Any], message: str) -> None:
    good = Program("pils", 1, 2, 3, 1e6)
    assert Program.from_message(good._asdict()) == good
    with pytest.raises(InputError, match=message):
        Program.from_message(good._asdict() | change)
    with pytest.raises(InputError, match="lacks 'iterations'"):
        Program.from_message({"application": "pils", "serial_units": 1, "parallel_units": 1})


@pytest.mark.parametrize("balance", ["static", "dynamic"])
def test_the_kernel_computes_exactly_the_work(tmp_path: Path, balance: str) -> None:
    def counting(launch: Launch, control: socket.socket) -> int:
        asked: list[int] = []

        def kernel(first: int, units: int) -> int:
            asked.append(units)
            return sum(range(first, first + units))

        status = run_rank(launch, control, kernel)
        (launch.folder / f"{launch.rank}.asked").write_text(str(sum(asked)))
        return status

    program = Program("pils", 101, 10_007, 13, 1e6, balance=balance)
    ranks = [Rank(launch("a", program, tmp_path, duty=1), counting)]
    ranks[0].hear("listening")
    ranks.append(Rank(launch("b", program, tmp_path, duty=1), counting))
    said = [rank.hear("finished") for rank in ranks]
    assert [rank.join() for rank in ranks] == [0, 0]
    assert [message["state"] for message in said] == ["completed", "completed"]
    asked = [int((tmp_path / f"{name}.asked").read_text()) for name in "ab"]
    assert asked == [message["units_done"] for message in said]
    assert sum(asked) == 101 + 10_007
    assert int(said[0]["checksum"], 16) == sum(range(101 + 10_007))  # each unit once
    assert said[1]["checksum"] is None  # known to the leader
    if balance == "static":
        assert abs(asked[0] - 101 - asked[1]) <= 13  # equal shares, to one unit per iteration


def test_ranks_meet_over_the_network_too(tmp_path: Path) -> None:
    program = Program("pils", 10, 100, 3, 1e6)
    inet = {"duty": 1, "family": "AF_INET", "address": ("127.0.0.1", 0)}
    leader = Rank(launch("a", program, tmp_path, **inet), Pils().run)
    address = tuple(leader.hear("listening")["address"])
    follower = Rank(launch("b", program, tmp_path, **inet | {"address": address}), Pils().run)
    assert leader.hear("finished")["units_done"] + follower.hear("finished")["units_done"] == 110
    assert (leader.join(), follower.join()) == (0, 0)


def test_short_messages_over_the_network_leave_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        for end in (peer, server.accept()[0]):
            with end:
                tune(end)
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_kernel_that_fails_fails_the_job_with_its_reason(tmp_path: Path) -> None:
    def broken(launch: Launch, control: socket.socket) -> int:
        def kernel(first: int, units: int) -> int:
            raise ArithmeticError("the sum is wrong")

        with (tmp_path / "errors").open("w") as sys.stderr:
            return run_rank(launch, control, kernel)

    leader = Rank(launch("a", Program("pils", 0, 10, 2, 1e6), tmp_path, members=("a",), duty=1), broken)
    said = leader.hear("finished")
    assert (said["state"], said["reason"]) == ("failed", "ArithmeticError: the sum is wrong")
    assert leader.join() == 1
    assert "Traceback" in (tmp_path / "errors").read_text()


def test_a_silent_connection_does_not_block_others(tmp_path: Path) -> None:
    program = Program("pils", 0, 10, 2, rate=1e6)
    leader = Rank(launch("a", program, tmp_path), Pils().run)
    leader.hear("listening")
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as rude:
        silent.connect(str(tmp_path / "s"))
        rude.connect(str(tmp_path / "s"))
        rude.sendall(b"\0\0\0\4spam" * 4)
        assert "failed authentication" in leader.hear("error")["what"]
        follower = Rank(launch("b", program, tmp_path), Pils().run)
        assert leader.hear("finished")["state"] == "completed"
    assert (leader.join(), follower.join()) == (0, 0)


def test_heartbeats_record_progress_and_state(tmp_path: Path) -> None:
    program = Program("pils", 5, 50, 4, rate=1e6)
    leader = Rank(launch("a", program, tmp_path, members=("a",), cpus=(0, 1, 2)), Pils().run)
    leader.hear("finished")
    leader.join()
    records = [json.loads(line) for line in (tmp_path / "a.heartbeat.jsonl").read_text().splitlines()]
    assert records[0]["state"] == "listening" and records[0]["work_done"] == 0
    keys = "time pid job rank iteration work_done mask cpu_s state"
    assert set(records[-1]) == set(keys.split())
    last = {key: records[-1][key] for key in ("job", "rank", "iteration", "work_done", "mask", "state")}
    assert last == {
        "job": "1",
        "rank": "a",
        "iteration": 4,
        "work_done": 55,
        "mask": "0-2",
        "state": "completed",
    }
    times = [record["time"] for record in records]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("duty", "changing", "steady"),
    [
        (0.0, "a", False),
        (0.5, "b", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((0.0, "b", False), (0.5, "a", False), (0.0, "a", True), (1.0, "a", True))
        ),
    ],
)
def test_the_time_of_a_mask_change_is_added_to_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, duty: float, changing: str, steady: bool
) -> None:
    """Slack never hides a slow reconfiguration, of the leader or of a follower: the job takes that much longer."""
    if duty and len(CPUS) < 2:
        pytest.skip("this machine has one CPU")
    slow = workers.Sleeper if duty == 0 else workers.Threads
    quick = slow.set_mask

    def set_mask(self: workers.Workers, cpus: tuple[int, ...]) -> None:
        starting = not hasattr(self, "cpus")
        quick(self, cpus)  # type: ignore[arg-type]
        if not starting:
            time.sleep(0.3)

    monkeypatch.setattr(slow, "set_mask", set_mask)
    seconds = round(patience(1.0), 2)  # the mask changes before the job ends
    program = Program("pils", 0, round(40_000 * seconds), 10, 20_000.0)
    changes = {"duty": duty, "clock": SteadyClock.create(tmp_path / "clock", 2).path if steady else None}
    begun = time.monotonic()
    ranks = {"a": Rank(launch("a", program, tmp_path, **changes), Pils().run)}
    ranks["a"].hear("listening")
    ranks["b"] = Rank(launch("b", program, tmp_path, **changes), Pils().run)
    ranks["a"].hear("started")
    ranks[changing].set_mask([CPUS[1] if duty else CPU + 1])
    resized = ranks[changing].hear("resized")
    ended = ranks["a"].hear("finished")
    assert (ended["state"], ranks["b"].hear("finished")["state"]) == ("completed", "completed")
    took = resized["applied"] - resized["decided"]
    assert took >= 0.3
    assert ended["planned_s"] == pytest.approx(seconds + took, abs=1e-6)
    assert ended["time"] >= begun + ended["planned_s"]
    assert ended["residual_s"] >= -1e-6
    assert {rank.join() for rank in ranks.values()} == {0}


@pytest.mark.parametrize("duty", [0.25, 1.0])
def test_ranks_tell_the_work_that_they_really_did(tmp_path: Path, duty: float) -> None:
    program = Program("pils", 400, 4_000, 20, 1e6)
    rank = Rank(launch("a", program, tmp_path, members=("a",), duty=duty, work_s=GUARD_S), Pils().run)
    work, ended = rank.hear("work"), rank.hear("finished")
    assert rank.join() == 0
    assert len(work["samples"]) == 20  # one of an iteration, with its serial part
    times, units, cpu_s, wall_s, late_s = zip(*work["samples"], strict=True)
    assert list(times) == sorted(times) and times[-1] <= work["time"]
    assert sum(units) == duty * 4_400 and ended["units_done"] == 4_400
    assert all(cpu > 0 for cpu in cpu_s) and all(wall > 0 for wall in wall_s)
    assert all(late >= 0 for late in late_s)
    assert ended["planned_s"] == pytest.approx(4_400 / 1e6)
    if duty == 1:
        assert (set(late_s), ended["late_s"], ended["overruns"]) == ({0.0}, None, 0)
    else:
        assert ended["late_s"] == pytest.approx(max(late_s), abs=1e-9) and 0 <= ended["overruns"] <= 40


def test_an_emulated_rank_tells_how_late_it_was_in_one_sample(tmp_path: Path) -> None:
    program = Program("pils", 0, 40, 20, 1e6)
    rank = Rank(launch("a", program, tmp_path, members=("a",), work_s=GUARD_S), Pils().run)
    work, ended = rank.hear("work"), rank.hear("finished")
    assert rank.join() == 0
    [[at, units, cpu_s, wall_s, late_s]] = work["samples"]
    assert at <= work["time"] and (units, cpu_s, wall_s) == (0, 0, 0)
    assert late_s == pytest.approx(ended["late_s"], abs=1e-9) and late_s > 0


@pytest.mark.parametrize("duty", [0.0, 1.0])
def test_the_parts_of_a_job_end_at_their_deadlines_by_the_steady_clock(tmp_path: Path, duty: float) -> None:
    """The clock waits for each part, so that no part is late, however slow the machine is."""
    with contextlib.closing(SteadyClock.create(tmp_path / "clock", 2)) as clock:
        program = Program("pils", 0, 600_000, 1, 1e6)  # 0.3 s, at more than the rate of two ranks on a core
        changes = {"duty": duty, "clock": clock.path}
        leader = Rank(launch("a", program, tmp_path, **changes), Pils().run)
        leader.hear("listening")
        follower = Rank(launch("b", program, tmp_path, **changes), Pils().run)
        for rank in (leader, follower):
            ended = rank.hear("finished")
            assert (ended["state"], ended["overruns"], ended["late_s"]) == ("completed", 0, 0.0)
            assert ended["units_done"] == 300_000
        assert (leader.join(), follower.join()) == (0, 0)
        assert not clock.holder()  # an ended rank does not hold the clock


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("balance", ["static", "dynamic"])
def test_no_work_is_lost_or_done_twice_at_any_duty(tmp_path: Path, balance: str, seed: int) -> None:
    """Ranks of different duties join, leave and change their masks; each computes its duty of the units it reports."""
    draw = random.Random(seed)
    program = Program("pils", 1_009, 100_003, 100, 25_000.0, balance=balance)
    duties = {name: draw.choice([0.0, 0.1, 0.37, 0.8, 1.0]) for name in "abc"}
    present: dict[str, Rank] = {}
    ended: list[tuple[float, Rank]] = []

    def add(name: str) -> None:
        duty = {"duty": duties[name], "cpus": tuple(CPUS[: draw.randint(1, 2)]), "members": ("a",)}
        present[name] = Rank(launch(name, program, tmp_path, **duty), Pils().run)

    def end(name: str) -> None:
        rank = present.pop(name)
        if not any(message["type"] == "finished" for message in rank.heard):
            rank.hear("finished")
        ended.append((duties[name], rank))

    add("a")
    present["a"].hear("started")
    for request in range(1, 9):
        name = draw.choice(sorted(present))
        change: dict[str, Any] = {}
        if draw.random() < 0.5 and len(CPUS) > 1:
            asked = present[name]
            asked.set_mask(CPUS[:1] if len(asked.cpus) > 1 else CPUS[:2])
        else:
            members = ["a", *draw.sample("bc", draw.randint(0, 2))]
            for missing in set(members) - present.keys():
                add(missing)
            asked, change = present["a"], {"members": members}
            asked.tell(request=request, **change)
        if asked.hear("resized", "finished")["type"] == "finished":
            break
        for name in set(present) - set(change.get("members", present)):
            end(name)
    changes = request
    for name in sorted(present, reverse=True):
        end(name)
    assert changes >= 3
    assert {rank.join() for _, rank in ended} == {0}
    last = [rank.heard[-1] for _, rank in ended]
    assert {message["state"] for message in last} == {"completed"}
    assert sum(message["units_done"] for message in last) == 1_009 + 100_003
    for duty, rank in ended:
        samples = [sample for message in rank.heard if message["type"] == "work" for sample in message["samples"]]
        shares = 2 * 4 * (program.iterations + 1)  # at most; each is rounded to whole units
        assert abs(sum(sample[1] for sample in samples) - duty * rank.heard[-1]["units_done"]) <= shares


@pytest.mark.parametrize("duty", [0.3, 1.0])
@pytest.mark.parametrize("balance", ["static", "dynamic"])
def test_the_checksum_does_not_depend_on_resizes(tmp_path: Path, balance: str, duty: float) -> None:
    """The checksum of a job whose ranks and masks change is that of its units, at any duty."""
    resized = tmp_path / "resized"

    def unhurried(first: int, count: int) -> int:
        if not resized.exists():  # the job ends after its resizes, however slow the machine is
            time.sleep(0.005)
        return kernels.compute(first, count)

    def run(launch: Launch, control: socket.socket) -> int:
        return run_rank(launch, control, unhurried)

    program = Program("pils", 101, 20_011, 1000, 50_000.0, balance=balance)
    leader = Rank(launch("a", program, tmp_path, duty=duty, members=("a",)), run)
    leader.hear("started")
    follower = Rank(launch("b", program, tmp_path, duty=duty), run)
    leader.tell(request=1, members=["a", "b"])
    leader.hear("resized")
    if len(CPUS) > 1:
        leader.set_mask(CPUS)
        leader.hear("resized")
    leader.tell(request=3, members=["a"])
    leader.hear("resized")
    resized.touch()
    assert follower.hear("finished")["units_done"] > 0
    said = leader.hear("finished")
    assert said["checksum"] == f"{kernels.compute(0, int(duty * (101 + 20_011))):016x}"
    assert (leader.join(), follower.join()) == (0, 0)


def test_the_share_of_a_removed_core_falls_on_others_where_data_are_divided() -> None:
    """Figure 5 of the DROM paper: four parts of the data on three cores, one core has two parts."""
    assert [*map(len, deal(range(400), 4, 4))] == [100, 100, 100, 100]
    assert [*map(len, deal(range(400), 3, 4))] == [200, 100, 100]
    assert [*map(len, deal(range(400), 5, 4))] == [100, 100, 100, 100, 0]
    assert [*map(len, deal(range(400), 3))] == [133, 133, 134]
    assert [*map(len, deal(range(6400), 15, TASKS * 16))] == [500] * 4 + [400] * 11  # as in the figure


@given(st.integers(0, 10**6), st.integers(1, 64), st.integers(0, 64))
def test_every_unit_is_dealt_once(total: int, cores: int, partitions: int) -> None:
    shares = deal(range(5, 5 + total), cores, partitions)
    assert len(shares) == cores and shares[0].start == 5 and shares[-1].stop == 5 + total
    assert all(one.stop == two.start for one, two in itertools.pairwise(shares))
    largest = -(-(partitions or cores) // cores)
    assert max(map(len, shares)) <= -(-total * largest // (partitions or cores))
