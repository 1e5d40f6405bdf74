"""Sets of nodes as bit masks, and two choices of nodes: the lowest, and those of select/linear."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np


def mask_of(nodes: Collection[int]) -> int:
    """Return the bit mask of `nodes`."""
    if not nodes:
        return 0
    numbers = np.fromiter(nodes, dtype=np.intp, count=len(nodes))
    bits = np.zeros(numbers.max() + 1, dtype=np.uint8)
    bits[numbers] = 1
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def nodes_of(mask: int) -> tuple[int, ...]:
    """Return the nodes of a bit mask in ascending order."""
    octets = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), dtype=np.uint8)
    return tuple(np.unpackbits(octets, bitorder="little").nonzero()[0].tolist())


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
