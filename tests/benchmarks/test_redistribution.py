"""The state of a job: the plan of its moves, and ranks that hold it while they join and leave."""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.test_pils import Rank, launch
from tests.patience import GUARD_S
from tests.servers.agents import stopped
from tracebed.benchmarks import state
from tracebed.benchmarks.connections import Peer
from tracebed.benchmarks.follower import Follower
from tracebed.benchmarks.kernels import compute
from tracebed.benchmarks.leader import Leader
from tracebed.benchmarks.program import Launch, Program
from tracebed.benchmarks.redistribution import Block, blocks, moves, rearranged
from tracebed.benchmarks.state import PAGE, DistributedState, answer

TOTALS = st.integers(0, 60)


def holders(total: int, order: Sequence[str]) -> list[str]:
    """Return the rank of each page. The slow reference: page by page, without intervals."""
    count = len(order)
    return [order[next(i for i in range(count) if page < total * (i + 1) // count)] for page in range(total)]


def moved(total: int, old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of pages whose rank changes."""
    return sum(before != after for before, after in zip(holders(total, old), holders(total, new), strict=True))


@st.composite
def resizes(draw: st.DrawFn, most: int) -> tuple[list[str], list[str]]:
    """Draw the ranks before and after a resize. Some ranks stay, in most cases."""
    names = [f"n{index}" for index in range(2 * most)]
    old = draw(st.lists(st.sampled_from(names), min_size=1, max_size=most, unique=True))
    new = draw(st.lists(st.sampled_from(names), min_size=1, max_size=most, unique=True))
    return old, new


@given(TOTALS, st.integers(1, 70))
def test_blocks_hold_each_page_once_and_differ_by_one_page_at_most(total: int, ranks: int) -> None:
    found = blocks(total, ranks)
    assert [page for first, end in found for page in range(first, end)] == list(range(total))
    sizes = [end - first for first, end in found]
    assert max(sizes) - min(sizes) <= 1


@given(TOTALS, resizes(12))
def test_each_page_whose_rank_changes_moves_once_to_its_new_rank(
    total: int, ranks: tuple[list[str], list[str]]
) -> None:
    old, new = ranks
    held = holders(total, old)
    plan = moves(total, old, new)
    for source, target, (first, end) in plan:
        assert first < end and source != target
        for page in range(first, end):
            assert held[page] == source, "the page moves from the rank that holds it, and only once"
    for _, target, (first, end) in plan:
        held[first:end] = [target] * (end - first)
    assert held == holders(total, new)
    assert sum(end - first for _, _, (first, end) in plan) == moved(total, old, new)


@given(TOTALS, resizes(5))
def test_no_other_order_of_the_ranks_moves_fewer_pages(total: int, ranks: tuple[list[str], list[str]]) -> None:
    old, new = ranks
    order = rearranged(total, old, new)
    assert sorted(order) == sorted(new)
    least = min(moved(total, old, other) for other in permutations(new))
    assert moved(total, old, order) == least


@given(TOTALS, resizes(40))
def test_many_ranks_are_rearranged_too(total: int, ranks: tuple[list[str], list[str]]) -> None:
    old, new = ranks
    order = rearranged(total, old, new)
    assert sorted(order) == sorted(new)
    assert moved(total, old, order) <= moved(total, old, new)


@pytest.mark.parametrize(
    ("old", "members", "new", "pages"),
    [
        ("a", "abcd", "a", 48),  # a keeps one of four equal blocks
        ("ab", "abcd", "ab", 32),  # each keeps half of its block, with a new rank between the two
        ("abcd", "ab", "ab", 48),  # two neighbors: only one of them keeps its block
        ("abcd", "ac", "ac", 32),
        ("abc", "abc", "abc", 0),
        ("ab", "cd", "", 64),  # no rank stays
    ],
)
def test_resizes_in_equal_blocks(old: str, members: str, new: str, pages: int) -> None:
    order = rearranged(64, old, members)
    assert sum(end - first for _, _, (first, end) in moves(64, old, order)) == pages
    assert [rank for rank in order if rank in new] == list(new)


def test_a_thousand_ranks_are_planned_at_once() -> None:
    old, new = [f"n{index}" for index in range(1000)], [f"n{index}" for index in range(500, 4000)]
    order = rearranged(10**9, old, new)
    assert len(moves(10**9, old, order)) <= 4500
    assert blocks(10**9, 3)[1] == Block(333333333, 666666666)


# Ranks.


class Group:
    """The ranks of a job that ranks join and leave.

    The rank `stops` stops itself (SIGSTOP) when it is to send or has received its third page.
    """

    def __init__(
        self, folder: Path, mib: float, duties: Mapping[str, float], first: Sequence[str], stops: str = "", **work: Any
    ) -> None:
        self.folder, self.duties, self.stops, self.requests = folder, duties, stops, 0
        self.resized = folder / "resized"
        self.program = Program("pils", 0, 10**9, 10**6, 1e6, balance="dynamic", state_mib=mib)._replace(**work)
        self.present: dict[str, Rank] = {}
        self.ended: list[Rank] = []
        self.add(first[0], members=tuple(first))
        self.present[first[0]].hear("listening")
        for name in first[1:]:
            self.add(name)
        self.leader = self.present[first[0]]
        self.leader.hear("started")

    def add(self, name: str, **changes: Any) -> None:
        """Start a rank. At its end, the rank writes the numbers of its pages and those of the wrong ones."""

        def run(launched: Launch, control: socket.socket) -> int:
            if launched.rank == self.stops:
                state.answer = stopping_at_the_third_page()  # in the process of this rank only
            rank = (Leader if launched.leader else Follower)(launched, control, self.compute)
            status = rank.run()
            held = {"pages": sorted(rank.state.pages), "wrong": rank.state.wrong()}
            (self.folder / f"{launched.rank}.{os.getpid()}").write_text(json.dumps(held))
            return status

        own = {"duty": self.duties[name], "received": time.monotonic()}
        self.present[name] = Rank(launch(name, self.program, self.folder, **own | changes), run)

    def compute(self, first: int, count: int) -> int:
        """Compute units, slowly until the resizes are over, so that the job does not end before."""
        if not self.resized.exists():
            time.sleep(0.005)
        return compute(first, count)

    def ask(self, *members: str) -> None:
        """Start the missing ranks, and request the leader to continue with `members`."""
        for name in set(members) - self.present.keys():
            self.add(name)
        self.requests += 1
        self.leader.tell(request=self.requests, members=members)

    def resize(self, *members: str) -> dict[str, Any]:
        """Continue with `members`, check that released ranks hold nothing, and return the event `resized`."""
        self.ask(*members)
        resized = self.leader.hear("resized", "finished")
        assert resized["type"] == "resized", resized
        for name in set(self.present) - set(members):
            assert self.end(name) == []
        return resized

    def end(self, name: str) -> list[int]:
        """Wait for the end of a rank, and return the pages that it held."""
        rank = self.present.pop(name)
        finished = rank.hear("finished")
        assert finished["state"] == "completed", finished
        assert rank.join() == 0
        held = json.loads((self.folder / f"{name}.{rank.process.pid}").read_text())
        assert held["wrong"] == []
        return list(held["pages"])

    def pages_at_the_end(self) -> dict[str, list[int]]:
        """Return the pages that each rank holds when the job has ended."""
        self.resized.touch()
        return {name: self.end(name) for name in list(self.present)}

    def kill(self) -> None:
        for rank in self.present.values():
            rank.process.kill()
            rank.join()


def stopping_at_the_third_page() -> Callable[..., bool]:
    """Return the function `answer`, which stops this process at the third message `fetch` or `page`."""
    pages: list[int] = []

    def stopping(state: DistributedState, message: dict[str, Any], *rest: Any) -> bool:
        if message["type"] in ("fetch", "page"):
            pages.append(message["page"])
            if len(pages) == 3:
                os.kill(os.getpid(), signal.SIGSTOP)
        return answer(state, message, *rest)

    return stopping


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    """A function that starts a group of ranks. They are killed if the test fails."""
    started: list[Group] = []

    def start(*arguments: Any, **work: Any) -> Group:
        started.append(Group(tmp_path, *arguments, **work))
        return started[-1]

    yield start
    for one in started:
        one.kill()


COMPUTING = dict.fromkeys("abcdef", 1.0)
STEPS = {"iterations": 1000, "parallel_units": 20_000, "rate": 1e4}


def resize_repeatedly(ranks: Group, mib: float, sizes: Sequence[str]) -> None:
    """Resize a job, and check after each step how much moved, and at the end every byte."""
    total, order = -(-round(mib * 2**20) // PAGE), ["a"]
    for members in sizes:
        resized = ranks.resize(*members)
        after = rearranged(total, order, members)
        stages, plan = resized["stages"], moves(total, order, after)
        assert stages["moved_mib"] == DistributedState(mib).bytes_of(plan) / 2**20
        assert stages["redistribution_s"] > 0 and stages["decision_s"] >= 0
        assert (stages["spawn_s"] > 0) == bool(set(after) - set(order))
        order = after
    pages = ranks.pages_at_the_end()
    assert {name: pages[name] for name in order} == {
        name: list(range(*block)) for name, block in zip(order, blocks(total, len(order)), strict=True)
    }


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_every_byte_survives_random_resizes(group: Callable[..., Group], seed: int) -> None:
    """Followers exchange all their blocks in both directions at once when the order of the ranks changes."""
    draw = random.Random(seed)
    mib = draw.choice([0.1, 3.7, 20.03])
    sizes = ["".join(["a", *draw.sample("bcdef", draw.randint(0, 5))]) for _ in range(8)]
    resize_repeatedly(group(mib, COMPUTING, "a", **STEPS), mib, sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mib", "sizes"), [(64.0, ["abcd", "ac", "acd"]), (1024.0, ["ab", "abcd", "abcdef", "ad", "a"])]
)
def test_every_byte_of_a_large_state_survives(group: Callable[..., Group], mib: float, sizes: list[str]) -> None:
    resize_repeatedly(group(mib, COMPUTING, "a", **STEPS), mib, sizes)


@pytest.mark.slow
def test_emulated_ranks_hold_and_move_nothing(group: Callable[..., Group]) -> None:
    ranks = group(64.0, dict.fromkeys("abc", 0.0), "ab", **STEPS | {"rate": 4e3})
    assert ranks.resize("a", "b", "c")["stages"]["moved_mib"] is None
    assert ranks.resize("a")["stages"]["moved_mib"] is None
    assert ranks.pages_at_the_end() == {"a": []}


def test_the_computing_ranks_of_a_partly_emulated_job_hold_the_state(group: Callable[..., Group]) -> None:
    ranks = group(1.0, {"a": 0.0, "b": 1.0, "c": 1.0}, "ab", **STEPS | {"rate": 4e3})
    assert ranks.resize("a", "b", "c")["stages"]["moved_mib"] == 0.5
    assert ranks.pages_at_the_end() == {"a": [], "b": [0, 1], "c": [2, 3]}


def test_a_job_without_state_moves_nothing(group: Callable[..., Group]) -> None:
    ranks = group(0.0, COMPUTING, "a", **STEPS)
    assert ranks.resize("a", "b")["stages"]["moved_mib"] == 0
    assert ranks.pages_at_the_end() == {"a": [], "b": []}


@pytest.mark.parametrize("victim", ["b", "d"])
def test_a_rank_killed_in_the_middle_of_a_redistribution_fails_the_job(
    group: Callable[..., Group], victim: str
) -> None:
    """Rank b sends, rank d receives. The victim stops at its third page, so that the moves cannot end before."""
    ranks = group(64.0, COMPUTING, "ab", stops=victim)
    ranks.ask("a", "d")
    process = psutil.Process(ranks.present[victim].process.pid)
    assert stopped(process)
    ranks.leader.tell(request=2, members=["a"])
    assert "resize 1 is still pending" in ranks.leader.hear("error")["what"]  # the leader does not wait blindly
    process.kill()
    outcomes = {name: rank.hear("finished") for name, rank in ranks.present.items() if name != victim}
    assert {name: (one["state"], one["reason"]) for name, one in outcomes.items()} == {
        "a": ("failed", f"lost rank '{victim}'"),
        {"b": "d", "d": "b"}[victim]: ("failed", "lost the connection to the leader"),
    }
    assert not any(message["type"] == "resized" for message in ranks.leader.heard)
    assert {name: rank.join() for name, rank in ranks.present.items()} == {"a": 1, "b": 1, "d": 1} | {victim: -9}


def test_peers_that_send_each_other_large_data_do_not_wait_for_each_other() -> None:
    size = 32 * 2**20
    ends = socket.socketpair()
    with selectors.DefaultSelector() as selector:
        heard: dict[int, list[bytes]] = {0: [], 1: []}
        peers = [
            Peer(selector, end, lambda message, data, to=index: heard[to].append(bytes(data)), lambda: None)
            for index, end in enumerate(ends)
        ]
        for index, peer in enumerate(peers):
            peer.send({"type": "page"}, bytes([index]) * size)
        for peer in peers:
            peer.send({"type": "end"})
        while not heard[0][1:] or not heard[1][1:]:
            for key, _ in selector.select(GUARD_S):
                key.data()
        assert heard == {0: [b"\1" * size, b""], 1: [b"\0" * size, b""]}
        lost: list[bool] = []
        peers[0]._on_lost = lambda: lost.append(True)
        peers[1].close()
        while not lost:
            for key, _ in selector.select(GUARD_S):
                key.data()
        assert peers[0].closed and not selector.get_map()
