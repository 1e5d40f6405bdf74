"""PILS: ranks with different loads, after the benchmark of that name by BSC, Barcelona.

In each iteration, each rank does its tasks on its threads. The iteration ends with a barrier and a reduction over the
ranks. A rank that waits there follows changes of its CPUs, so that another rank can take them. A task of BSC's
benchmark spins for a given time. A task of this one is a fixed amount of work that takes a given CPU time, so threads
that share a CPU take longer.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Protocol

from tracebed import malleable
from tracebed.benchmarks import kernels
from tracebed.benchmarks.drom import TABLE, VARIABLE, Administrator
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.ownership import DromResult, Flags
from tracebed.benchmarks.standalone.team import Team, chosen
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError, TestbedError, TracebedError

LOADS = (250,)
ITERATIONS = 10
TASK_S = 500e-6
STARVED_S = 10.0
"""Time after which the program fails if a rank holds no CPU, and is to have none, while other ranks hold CPUs, s. They
wait for that rank, and would wait for ever."""
FEWER = "choose fewer ranks or threads"
LOOK_S = 0.001
"""Time between two calls of a rank that waits for others, s."""


@dataclass(frozen=True)
class PilsWork:
    """The work of the program."""

    loads: tuple[int, ...]  # tasks of each rank in an iteration; rank r has the load r modulo their number
    grain: float  # part of the tasks of a thread that it takes at once, above 0 and at most 1
    iterations: int
    units: int  # of work of a task (see pils.c)

    def load(self, rank: int) -> int:
        """Return the tasks of a rank in an iteration."""
        return self.loads[rank % len(self.loads)]


@dataclass(frozen=True)
class RankResult:
    """What a rank did."""

    load: int  # its tasks in an iteration
    cpus: tuple[tuple[int, ...], ...]  # in each iteration
    compute_s: tuple[float, ...]  # for its tasks, without the reduction, in each iteration, s
    iteration_s: tuple[float, ...]  # of each iteration, with the reduction, s
    cpu_s: float  # of its tasks, s
    checksum: int  # of all units of all ranks, modulo 2^64; it does not depend on threads

    @property
    def wait_s(self) -> float:
        """Time in which the rank waited for other ranks, s."""
        return sum(self.iteration_s) - sum(self.compute_s)

    @property
    def core_s(self) -> float:
        """Time of all CPUs that the rank held, s."""
        return sum(len(cpus) * seconds for cpus, seconds in zip(self.cpus, self.iteration_s, strict=True))


@dataclass(frozen=True)
class PilsResult:
    """The result of PILS.

    Attributes:
        kernel: `c` or `numpy`.
        work: the work.
        ranks: the results of the ranks.
        seconds: time of all iterations, s.
    """

    kernel: str
    work: PilsWork
    ranks: tuple[RankResult, ...]
    seconds: float

    @property
    def checksum(self) -> int:
        """Sum of all units, modulo 2^64. It depends on the work only."""
        return self.ranks[0].checksum

    @property
    def load_balance(self) -> float:
        """Mean over maximum of the computing times of the ranks."""
        times = [sum(rank.compute_s) for rank in self.ranks]
        return sum(times) / len(times) / max(times)

    @property
    def efficiency(self) -> float:
        """CPU time of the tasks over the time of all CPUs that the ranks held."""
        return sum(rank.cpu_s for rank in self.ranks) / sum(rank.core_s for rank in self.ranks)


def run(
    loads: Sequence[int] = LOADS,
    *,
    grain: float = 1.0,
    iterations: int = ITERATIONS,
    task_s: float = TASK_S,
    units: int | None = None,
    ranks: int = 1,
    threads: int | None = None,
    cpus: Sequence[int] | None = None,
) -> PilsResult:
    """Run PILS, with one thread on each CPU.

    With a table of CPUs, the ranks share the CPUs that were prepared for this process. Each rank follows changes of its
    CPUs between iterations.

    Args:
        loads: tasks of each rank in an iteration, repeated over the ranks.
        grain: part of the tasks of a thread that the thread takes at once, above 0 and at most 1.
        iterations: number of iterations.
        task_s: CPU time of a task, s. The work rate of this process is measured before the start.
        units: units of work of a task, in place of `task_s`.
        ranks: number of processes. This process is rank 0.
        threads: threads of a rank; with a table of CPUs the largest number. None: all CPUs, divided by the ranks.
        cpus: the CPUs; None: the CPUs of this process. Without a table only.

    Raises:
        InputError: an argument is invalid.
        TestbedError: a rank failed, no kernel can be loaded, or the table of CPUs cannot be used.
    """
    if not loads or any(load < 1 for load in loads):
        raise InputError(f"the loads {list(loads)} are not positive")
    for name, count in {"iterations": iterations, "ranks": ranks, "units": units, "threads": threads}.items():
        if count is not None and count < 1:
            raise InputError(f"{name} is {count}, not at least 1")
    if not 0 < grain <= 1:
        raise InputError(f"the grain {grain:g} is not above 0 and at most 1")
    if not 0 < task_s < math.inf:
        raise InputError(f"a task of {task_s:g} s is not positive")
    parts = _parts(ranks, threads, cpus)
    if units is None:
        units = max(1, round(task_s * kernels.calibrate()))
    work = PilsWork(tuple(loads), grain, iterations, units)
    begun = time.perf_counter()
    results = run_ranks(ranks, partial(_rank, work=work, parts=parts, threads=threads))
    return PilsResult(kernels.kernel_name(), work, tuple(results), time.perf_counter() - begun)


def _parts(ranks: int, threads: int | None, cpus: Sequence[int] | None) -> list[tuple[int, ...]]:
    """Return the CPUs of each rank. If there is a table of CPUs, a single rank takes its CPUs from there: ()."""
    table = os.environ.get(TABLE)
    if table and cpus is not None:
        raise InputError("CPUs are given, but the table of CPUs chooses them", hint="leave the CPUs out")
    if table and ranks == 1:
        return [()]
    available = _prepared(Path(table)) if table else tuple(sorted(os.sched_getaffinity(0)))
    found = available if cpus is None else tuple(cpus)
    if missing := set(found) - set(available):
        hint = f"choose among {format_cpus(available)}"
        raise InputError(f"this process may not use CPU {format_cpus(missing)}", hint=hint)
    size = len(found) // ranks if threads is None else threads
    if size < 1 or ranks * size > len(found):
        needed = ranks * max(size, 1)
        raise InputError(f"the threads of all ranks need {needed} CPUs, and there are {len(found)}", hint=FEWER)
    return [found[size * rank : size * (rank + 1)] for rank in range(ranks)]


def _prepared(path: Path) -> tuple[int, ...]:
    """Return the CPUs that an administrator prepared for this process; otherwise the CPUs that it may use."""
    pid = os.environ.get(VARIABLE, "")
    if pid.isdecimal():
        with closing(NodeTable(path)) as table:
            result, cpus = Administrator(table).mask(int(pid), Flags.SYNC)
        if not result.error:
            return cpus
        if result is not DromResult.NO_PROCESS:
            raise TestbedError(f"the CPUs of this process are not available: {result.name}", where=str(path))
    return tuple(sorted(os.sched_getaffinity(0)))


def _rank(
    rank: int, reduce: Reduce, *, work: PilsWork, parts: Sequence[tuple[int, ...]], threads: int | None
) -> RankResult:
    """Run a rank."""
    load = work.load(rank)
    masks: list[tuple[int, ...]] = []
    compute_s: list[float] = []
    iteration_s: list[float] = []
    cpu_s, checksum = 0.0, 0
    part = parts[rank]
    if rank == 0:
        reduce(0)  # the CPUs prepared for this process stay reserved until all other ranks have taken their parts
    with (
        malleable.attach(pin=False, cpus=part or None) as m,
        Team(chosen(m, None, threads) if m.malleable else part) as team,
    ):
        if rank > 0:
            reduce(0)
        reduce(0)  # all ranks have started
        begun = time.perf_counter()
        held, watch = m.cpus, _Starvation(rank)
        idle = partial(_idle, m, watch) if m.malleable else None
        for iteration in range(work.iterations):
            m.poll(wait=False)
            while not m.cpus:
                time.sleep(malleable.LOOK_S)
                watch()
                m.poll(wait=False)
            if m.cpus != held:
                held = m.cpus
                team.resize(chosen(m, None, threads))
            masks.append(team.cpus)
            computed = time.perf_counter()
            sums = _tasks(team, work, load, iteration * load)
            cpu_s += sum(seconds for _, seconds in sums)
            compute_s.append(time.perf_counter() - computed)
            checksum += reduce(sum(value for value, _ in sums) % kernels.MODULUS, idle)
            ended = time.perf_counter()
            iteration_s.append(ended - begun)
            begun = ended
    return RankResult(load, tuple(masks), tuple(compute_s), tuple(iteration_s), cpu_s, checksum % kernels.MODULUS)


class _Starvation:
    """The watch of rank 0 over ranks without a CPU. Other ranks watch rank 0: they end with it."""

    def __init__(self, rank: int) -> None:
        self._rank, self._parent, self._path = rank, os.getppid(), os.environ.get(TABLE)
        self._due, self._since = 0.0, math.inf

    def __call__(self) -> None:
        """Raise TestbedError if a rank has been without a CPU for too long, EOFError if rank 0 has ended."""
        if self._rank > 0 and os.getppid() != self._parent:
            raise EOFError
        now = time.monotonic()
        if self._rank > 0 or self._path is None or now < self._due:
            return
        self._due = now + STARVED_S / 100
        try:
            with closing(NodeTable(Path(self._path))) as table:
                shares = Administrator(table).shares()
        except TestbedError:  # the table is lost
            return  # the ranks keep their CPUs
        ranks = {os.getpid(): "rank 0", **{child.pid: child.name for child in multiprocessing.active_children()}}
        found = {name: shares[pid] for pid, name in ranks.items() if pid in shares}
        starved = [name for name, share in found.items() if not share.held and not share.target]
        if not starved or len(starved) == len(found):  # all of them: the whole program waits
            self._since = math.inf
        elif self._since == math.inf:
            self._since = now
        elif now - self._since > STARVED_S:
            what = f"{starved[0]} has lost its last CPU, and the other ranks have waited {STARVED_S:g} s for it"
            raise TestbedError(what, where=self._path, hint="leave each rank a CPU, or take those of all ranks")


def _idle(m: malleable.Attached, watch: _Starvation) -> None:
    """Follow changes of the CPUs of a rank that waits for the others."""
    m.poll(wait=False)
    watch()


def _tasks(team: Team, work: PilsWork, load: int, first: int) -> list[tuple[int, float]]:
    """Do `load` tasks from the number `first`. Return the sum of the units and the CPU time (s) of each thread."""
    group = max(1, math.ceil(load * work.grain / len(team.cpus)))
    starts = iter(range(first, first + load, group))
    done = [(0, 0.0)] * len(team.cpus)

    def take(index: int, size: int) -> None:
        checksum, begun = 0, time.thread_time()
        while (start := next(starts, None)) is not None:
            tasks = min(group, first + load - start)
            checksum += kernels.compute(start * work.units, tasks * work.units)
        done[index] = checksum, time.thread_time() - begun

    team.run(take)
    return done


class Reduce(Protocol):
    """A function that returns the sum of the values of all ranks. Each rank waits for all others."""

    def __call__(self, value: int, idle: Callable[[], object] | None = None) -> int:
        """Return the sum. `idle` is called again and again while this rank waits."""


Rank = Callable[[int, Reduce], Any]
"""The program of a rank: a function of the number of the rank. Its result can be pickled."""


def run_ranks(count: int, rank: Rank) -> list[Any]:
    """Run `count` ranks, and return their results. Rank 0 is this process; the forked others end if one fails."""
    context = multiprocessing.get_context("fork")
    links: list[Connection] = []
    processes: list[ForkProcess] = []

    def reduce(value: int, idle: Callable[[], object] | None = None) -> int:
        total: int = value + sum(_received(number, link, idle) for number, link in enumerate(links, 1))
        for number, link in enumerate(links, 1):
            _sent(number, link, total)
        return total

    try:
        for number in range(1, count):
            ours, theirs = context.Pipe()
            links.append(ours)
            process = context.Process(target=_forked, name=f"rank {number}", args=(number, rank, links, theirs))
            process.start()
            processes.append(process)
            theirs.close()
        results = [rank(0, reduce)]
        results += [_received(number, link) for number, link in enumerate(links, 1)]
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for link in links:
            link.close()
        for process in processes:
            process.join()
    return results


def _forked(number: int, rank: Rank, links: list[Connection], root: Connection) -> None:
    """Run a rank in a forked process. Its result, or its error, is sent to rank 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends the others
    for link in links:
        link.close()  # so that rank 0 is missed as soon as it ends

    def reduce(value: int, idle: Callable[[], object] | None = None) -> int:
        root.send(value)
        _await(root, idle)
        return int(root.recv())

    try:
        result = rank(number, reduce)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # rank 0 has ended
    except (TracebedError, OSError) as error:
        result = TestbedError(f"rank {number}: {error}")
    root.send(result)


def _await(link: Connection, idle: Callable[[], object] | None) -> None:
    """Wait for a message, or for the end of the other rank."""
    while idle is not None and not link.poll(LOOK_S):
        idle()


def _received(number: int, link: Connection, idle: Callable[[], object] | None = None) -> Any:
    try:
        _await(link, idle)
        value = link.recv()
    except (EOFError, OSError) as error:
        raise TestbedError(f"rank {number} has ended early") from error
    if isinstance(value, TestbedError):
        raise value
    return value


def _sent(number: int, link: Connection, value: int) -> None:
    try:
        link.send(value)
    except OSError as error:
        raise TestbedError(f"rank {number} has ended early") from error
