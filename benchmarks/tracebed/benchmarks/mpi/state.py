"""The state of the program: a vector of 64-bit integers in a block distribution, with a known value at each iteration.

Element i is i at the start, and x becomes a x + c modulo 2^64 in each iteration (a linear congruential generator). So
after k iterations element i is a^k i + c (1 + a + ... + a^(k-1)), and a lost, doubled or misplaced element is detected.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracebed.benchmarks.redistribution import Block, Move, blocks, moves

Vector: TypeAlias = npt.NDArray[np.uint64]

FACTOR = 6364136223846793005
ADDEND = 1442695040888963407
MODULUS = 2**64
ITEM = 8
"""Bytes of an element."""


def initial(block: Block) -> Vector:
    """Return the elements of a block at the start."""
    return np.arange(block.first, block.end, dtype=np.uint64)


def advance(vector: Vector) -> None:
    """Do one iteration on the elements."""
    np.multiply(vector, np.uint64(FACTOR), out=vector)
    np.add(vector, np.uint64(ADDEND), out=vector)


def after(block: Block, iterations: int) -> Vector:
    """Return the elements of a block after `iterations` iterations, computed directly."""
    factor, addend = 1, 0
    for _ in range(iterations):
        factor, addend = factor * FACTOR % MODULUS, (addend * FACTOR + ADDEND) % MODULUS
    return initial(block) * np.uint64(factor) + np.uint64(addend)


def checksum(vector: Vector) -> int:
    """Return the sum of the elements modulo 2^64."""
    return int(vector.sum(dtype=np.uint64))


def block_of(total: int, ranks: int, rank: int) -> Block:
    """Return the block of a rank; an empty one if `rank` is not below `ranks`."""
    return blocks(total, ranks)[rank] if rank < ranks else Block(total, total)


def transfers(total: int, before: int, after: int) -> list[tuple[int, int, Block]]:
    """Return the source, the target and the elements of each message of a change from `before` to `after` ranks."""
    plan: list[Move] = moves(total, [str(rank) for rank in range(before)], [str(rank) for rank in range(after)])
    return [(int(move.source), int(move.target), move.pages) for move in plan]


def kept(old: Block, new: Block) -> Block:
    """Return the elements that a rank keeps, which may be none."""
    first = max(old.first, new.first)
    return Block(first, max(first, min(old.end, new.end)))
