"""The plan of a redistribution: which pages of the state of a job move between which ranks at a resize.

The state of a job is a sequence of pages in a block distribution: the rank at position i of n holds the pages from
total i // n up to total (i + 1) // n, so blocks differ by at most one page. A resize changes the number of blocks. The
plan chooses which rank gets which new block, so that the smallest possible number of pages moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """An interval of pages: `first` up to, but not including, `end`."""

    first: int
    end: int


class Move(NamedTuple):
    """The pages of an interval move from one rank to another."""

    source: str
    target: str
    pages: Block


def blocks(total: int, ranks: int) -> list[Block]:
    """Return the blocks of `ranks` ranks, in order."""
    return [Block(total * index // ranks, total * (index + 1) // ranks) for index in range(ranks)]


def rearranged(total: int, order: Sequence[str], members: Sequence[str]) -> list[str]:
    """Return the new order of the ranks by which the fewest of `total` pages move. `order` is that of their blocks.

    A page stays if its rank keeps a block that contains the page. The overlaps of old with new blocks, from left to
    right, form a staircase: each overlap shares its old or its new block with the next one. A choice of overlaps is
    possible if no two of them share a block. The best choice is found from right to left: an overlap is either not
    chosen, or chosen together with the best choice from the first overlap on that shares no block with it.
    """
    stays = [
        (old, new, pages.end - pages.first if order[old] in members else 0)
        for old, new, pages in _overlaps(blocks(total, len(order)), blocks(total, len(members)))
    ]
    count = len(stays)
    following = []  # index -> the first overlap after it that shares no block with it
    apart = 0
    for old, new, _ in stays:
        while apart < count and (stays[apart][0] <= old or stays[apart][1] <= new):
            apart += 1
        following.append(apart)
    best = [0] * (count + 1)  # largest number of pages that stay, by the choice from this overlap on
    for index in range(count - 1, -1, -1):
        best[index] = max(best[index + 1], stays[index][2] + best[following[index]])
    chosen: dict[int, str] = {}
    index = 0
    while index < count:
        old, new, pages = stays[index]
        if pages and pages + best[following[index]] == best[index]:
            chosen[new] = order[old]
            index = following[index]
        else:
            index += 1
    placed = set(chosen.values())
    others = iter([member for member in members if member not in placed])
    return [chosen[new] if new in chosen else next(others) for new in range(len(members))]


def moves(total: int, old: Sequence[str], new: Sequence[str]) -> list[Move]:
    """Return the moves of pages from the blocks of `old` to the blocks of `new` ranks. Each page moves at most once."""
    return [
        Move(old[source], new[target], pages)
        for source, target, pages in _overlaps(blocks(total, len(old)), blocks(total, len(new)))
        if old[source] != new[target]
    ]


def _overlaps(old: Sequence[Block], new: Sequence[Block]) -> Iterator[tuple[int, int, Block]]:
    """Yield the indices of each old and new block that have pages in common, with these pages, from left to right."""
    source = target = 0
    while source < len(old) and target < len(new):
        first = max(old[source].first, new[target].first)
        end = min(old[source].end, new[target].end)
        if first < end:
            yield source, target, Block(first, end)
        if old[source].end <= new[target].end:
            source += 1
        else:
            target += 1
