"""The state of a job: the plan of its moves, and ranks that hold it while they join and leave."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebed.benchmarks.redistribution import Block, blocks, moves, rearranged

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
