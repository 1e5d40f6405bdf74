"""Sets of nodes as bit masks, and two choices of nodes: the lowest, and those of select/linear."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence


def mask_of(nodes: Collection[int]) -> int:
    """Return the bit mask of `nodes`."""
    mask = 0
    for first, count in _ranges(sorted(nodes)):
        mask |= _block(first, count)
    return mask


def nodes_of(mask: int) -> tuple[int, ...]:
    """Return the nodes of a bit mask in ascending order."""
    return tuple(node for first, count in blocks(mask) for node in range(first, first + count))


def blocks(mask: int) -> Iterable[tuple[int, int]]:
    """Yield (first node, number of nodes) of each block of consecutive nodes, in ascending order."""
    while mask:
        first = (mask & -mask).bit_length() - 1
        above = ~(mask >> first)
        count = (above & -above).bit_length() - 1
        yield first, count
        mask &= ~_block(first, count)


def lowest(mask: int, count: int) -> int:
    """Return the `count` lowest-numbered nodes of `mask`, as a mask. `mask` must have as many nodes."""
    chosen = 0
    for first, size in blocks(mask):
        if count <= size:
            return chosen | _block(first, count)
        chosen |= _block(first, size)
        count -= size
    return chosen


def best_fit(mask: int, count: int) -> int:
    """Return `count` nodes of `mask` with little fragmentation, as a mask. `mask` must have as many nodes.

    The nodes are the first ones of the smallest block of consecutive nodes that is large enough. If no block is large
    enough, the largest block is taken, and the search continues for the nodes that are still missing. The first of
    several equal blocks is taken.
    """
    free = list(blocks(mask))
    chosen = 0
    while count:
        enough = [block for block in free if block[1] >= count]
        first, size = min(enough, key=_size) if enough else max(free, key=_size)
        free.remove((first, size))
        taken = min(count, size)
        chosen |= _block(first, taken)
        count -= taken
    return chosen


def _size(block: tuple[int, int]) -> int:
    return block[1]


def _block(first: int, count: int) -> int:
    return ((1 << count) - 1) << first


def _ranges(nodes: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield (first, count) of each range of consecutive numbers in `nodes`, which is in ascending order."""
    begin = 0
    while begin < len(nodes):
        offset = nodes[begin] - begin  # constant within a range, larger after it
        end = bisect_right(range(len(nodes)), offset, begin, key=lambda at: nodes[at] - at)
        yield nodes[begin], end - begin
        begin = end
