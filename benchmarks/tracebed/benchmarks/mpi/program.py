"""A process of the malleable MPI program. `launch.py` starts the first one; this program spawns the others.

At the start of each iteration, rank 0 requests a change of the number of processes, as with `dmr_check_status`. To
expand, the processes spawn new ones (MPI_Comm_spawn) and merge the two groups (MPI_Intercomm_merge), old ranks first.
To shrink, the last ranks end after their state has moved. The other processes go on: no process restarts (method Merge
of MaM; Martín-Álvarez, Aliaga, Castillo, Iserte, Mayo: "Dynamic Spawning of MPI Processes Applied to Malleability").

The state is a vector of 64-bit integers in a block distribution, with a known value at each iteration. Element i is i
at the start, and x becomes a x + c modulo 2^64 in each iteration (a linear congruential generator). So after k
iterations element i is a^k i + c (1 + a + ... + a^(k-1)), and a lost, doubled or misplaced element is detected.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracebed.benchmarks.dmr import SizeRange
from tracebed.benchmarks.dmr_manager import address, request_decision
from tracebed.benchmarks.redistribution import Block, Move, blocks, moves
from tracebed.benchmarks.stages import ReconfigurationStages
from tracebed.ground.errors import TestbedError

MODULE = "tracebed.benchmarks.mpi.program"
PLAIN = "plain"  # argument of a process that is spawned only for the measurement of a plain spawn
JOIN = "join"  # argument of a process that is spawned for an expansion
TERMINATION_S = 30.0  # longest wait for the end of a released process, s
Vector: TypeAlias = npt.NDArray[np.uint64]
FACTOR = 6364136223846793005
ADDEND = 1442695040888963407
MODULUS = 2**64
ITEM = 8  # bytes of an element


class ProgramParameters(NamedTuple):
    """The parameters of the program."""

    sizes: list[int]  # number of processes at the start, then after each change
    elements: int  # length of the state
    iterations: int  # number of iterations at each size
    plain: bool  # whether the program measures plain spawns first
    report: str  # the file of the result
    # Whether each process is spawned on its own. MPI ends processes that were spawned together only together.
    apart: bool = False


class MpiProcess:
    """A process of the program: its part of the state, and the communicator of all processes."""

    def __init__(self, mpi: Any, parameters: ProgramParameters) -> None:
        self.mpi, self.parameters = mpi, parameters
        self.comm, self.world = mpi.COMM_WORLD.Dup(), mpi.COMM_WORLD.bcast(os.getpid())
        self.iteration, self.changes = 0, 0
        self.block = block_of(parameters.elements, self.comm.size, self.comm.rank)
        self.vector = initial_vector(self.block)
        self.plain: dict[int, float] = {}
        self.stages: list[ReconfigurationStages] = []
        self.joining = False  # whether the check of this iteration started the process

    @classmethod
    def joined(cls, mpi: Any, parent: Any) -> MpiProcess:
        """Return a spawned process after its first redistribution."""
        process = cls.__new__(cls)
        process.mpi, process.comm = mpi, parent.Merge(True)
        process.comm.Barrier()
        parent.Disconnect()
        process.world = mpi.COMM_WORLD.bcast(os.getpid())
        values, process.iteration, process.changes, before, target = process.comm.bcast(None)
        process.parameters = ProgramParameters(*values)
        process.block = Block(0, 0)
        process.vector = initial_vector(process.block)
        process.plain, process.stages, process.joining = {}, [], True
        process.spawn(before, target)
        process.redistribute(before, process.comm.size)
        return process

    def run(self) -> None:
        """Compute all iterations; a process that is released returns early."""
        total = len(self.parameters.sizes) * self.parameters.iterations
        while self.iteration < total:
            changes = self.changes
            if not self.joining and not self.check():
                return
            self.joining, begun = False, time.monotonic()
            advance_vector(self.vector)
            self.iteration += 1
            self.comm.allreduce(vector_checksum(self.vector))
            if self.stages and self.changes != changes:
                self.stages[-1] = self.stages[-1]._replace(first_iteration_s=time.monotonic() - begun)
        self.report()

    def check(self) -> bool:
        """Request a change, and apply it. Return False if this process is released."""
        begun, target = time.monotonic(), None
        if self.comm.rank == 0:
            target = self.request_size()
        target = self.comm.bcast(target)
        decision_s = time.monotonic() - begun
        before = self.comm.size
        if target == before:
            return True
        spawn_s = self.expand(target) if target > before else 0.0
        self.changes += 1
        begun = time.monotonic()
        self.redistribute(before, target)
        redistribution_s = time.monotonic() - begun
        stays, termination_s = self.shrink(target) if target < before else (True, 0.0)
        if self.comm is not None and self.comm.rank == 0:
            moved = sum(part.end - part.first for _, _, part in transfers(self.parameters.elements, before, target))
            times = (decision_s, spawn_s, redistribution_s, termination_s)
            self.stages.append(
                ReconfigurationStages(before, target, *times, moved * ITEM / 2**20, self.plain.get(target))
            )
        return stays

    def request_size(self) -> int:
        """Return the number of processes after this malleability point."""
        sizes = self.parameters.sizes
        wanted = sizes[min(self.changes + 1, len(sizes) - 1)]
        path = address()
        if path is None:
            raise TestbedError("no resource manager answers the checks", hint="start python -m tracebed.benchmarks.mpi")
        answer = request_decision(path, self.comm.size, SizeRange(min(sizes), wanted, max(sizes)))
        if answer.size < 1:
            raise TestbedError(f"the resource manager answers with the size {answer.size}")
        return answer.size

    def expand(self, target: int) -> float:
        """Spawn processes and merge them behind the old ones. Return the time of rank 0, s."""
        begun = time.monotonic()
        self.spawn(self.comm.size, target)
        return time.monotonic() - begun

    def spawn(self, before: int, target: int) -> None:
        """Spawn processes until there are `target`. Processes that have just been spawned take part."""
        while self.comm.size < target:
            count = 1 if self.parameters.apart else target - self.comm.size
            inter = self.comm.Spawn(sys.executable, ["-m", MODULE, JOIN], maxprocs=count)
            merged = inter.Merge(False)
            merged.Barrier()
            inter.Disconnect()
            self.comm.Free()
            self.comm = merged
            self.comm.bcast((tuple(self.parameters), self.iteration, self.changes + 1, before, target))

    def redistribute(self, before: int, after: int) -> None:
        """Move the state from the blocks of `before` ranks to the blocks of `after` ranks."""
        rank, total = self.comm.rank, self.parameters.elements
        old = self.block
        new = block_of(total, after, rank)
        vector = initial_vector(Block(0, new.end - new.first))
        requests = []
        for source, target, part in transfers(total, before, after):
            if source == rank:
                sent = self.vector[part.first - old.first : part.end - old.first]
                requests.append(self.comm.Isend(sent, dest=target))
            elif target == rank:
                received = vector[part.first - new.first : part.end - new.first]
                requests.append(self.comm.Irecv(received, source=source))
        same = kept(old, new)
        vector[same.first - new.first : same.end - new.first] = self.vector[
            same.first - old.first : same.end - old.first
        ]
        self.mpi.Request.Waitall(requests)
        self.block, self.vector = new, vector
        self.comm.Barrier()

    def shrink(self, target: int) -> tuple[bool, float]:
        """Release the ranks from `target` on. Return whether this process stays, and the time of rank 0, s.

        Processes that were spawned together end together: MPI_Finalize of a released one waits for those that stay.
        """
        processes = self.comm.gather((os.getpid(), self.world))
        rank = self.comm.rank
        with selectors.DefaultSelector() as selector:
            if processes:  # opened before any of the processes can end
                staying = {world for _, world in processes[:target]}
                for pid in [pid for pid, world in processes[target:] if world not in staying]:
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ)
            self.comm.Barrier()
            begun = time.monotonic()
            stays = self.comm.Split(0 if rank < target else self.mpi.UNDEFINED, rank)
            self.comm.Free()
            self.comm = stays if rank < target else None
            _await_ends(selector)
        return rank < target, time.monotonic() - begun

    def measure_plain_spawns(self) -> None:
        """Measure the start of each planned number of processes as new processes: spawn, merge, and a barrier."""
        for size in sorted(set(self.parameters.sizes[1:])):
            begun = time.monotonic()
            inter = self.mpi.COMM_SELF.Spawn(sys.executable, ["-m", MODULE, PLAIN], maxprocs=size)
            merged = inter.Merge(False)
            merged.Barrier()
            self.plain[size] = time.monotonic() - begun
            merged.Free()
            inter.Disconnect()

    def report(self) -> None:
        """Check the state, and write the result to the file of the parameters."""
        right = bool((self.vector == vector_after(self.block, self.iteration)).all())
        right = self.comm.allreduce(right, self.mpi.LAND)
        checksum = self.comm.reduce(vector_checksum(self.vector))
        if self.comm.rank == 0:
            result = {
                "library": self.mpi.Get_library_version().splitlines()[0].strip("\0 "),
                "iterations": self.iteration,
                "checksum": checksum % MODULUS,
                "valid": right,
                "stages": [tuple(stages) for stages in self.stages],
            }
            Path(self.parameters.report).write_text(json.dumps(result), encoding="utf-8")
        self.comm.Free()


def _await_ends(selector: selectors.BaseSelector) -> None:
    """Wait for the ends of the registered processes. Raises TestbedError if a process does not end."""
    until = time.monotonic() + TERMINATION_S
    while selector.get_map():
        ended = selector.select(max(0.0, until - time.monotonic()))
        if not ended:
            raise TestbedError(f"a released process has not ended after {TERMINATION_S:g} s")
        for key, _ in ended:
            selector.unregister(key.fd)
            os.close(key.fd)


def main(arguments: list[str]) -> None:
    """Run a process. The argument is `join`, `plain`, or the parameters in JSON."""
    from mpi4py import MPI  # this import starts MPI

    try:
        parent = MPI.Comm.Get_parent()
        if arguments[0] == PLAIN:
            merged = parent.Merge(True)
            merged.Barrier()
            merged.Free()
            parent.Disconnect()
        elif arguments[0] == JOIN:
            MpiProcess.joined(MPI, parent).run()
        else:
            process = MpiProcess(MPI, ProgramParameters(**json.loads(arguments[0])))
            if process.parameters.plain:
                process.measure_plain_spawns()
            process.run()
    except Exception:  # noqa: BLE001  without an abort, the other processes would wait for ever
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)


def initial_vector(block: Block) -> Vector:
    """Return the elements of a block at the start."""
    return np.arange(block.first, block.end, dtype=np.uint64)


def advance_vector(vector: Vector) -> None:
    """Do one iteration on the elements."""
    np.multiply(vector, np.uint64(FACTOR), out=vector)
    np.add(vector, np.uint64(ADDEND), out=vector)


def vector_after(block: Block, iterations: int) -> Vector:
    """Return the elements of a block after `iterations` iterations, computed directly."""
    factor, addend = 1, 0
    for _ in range(iterations):
        factor, addend = factor * FACTOR % MODULUS, (addend * FACTOR + ADDEND) % MODULUS
    return initial_vector(block) * np.uint64(factor) + np.uint64(addend)


def vector_checksum(vector: Vector) -> int:
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


if __name__ == "__main__":
    main(sys.argv[1:])
