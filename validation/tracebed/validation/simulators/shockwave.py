"""Results of the schedulers Gavel and Shockwave as runs: the GPUs of each job in the rounds of a cluster.

Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning", NSDI 2023.
Their program writes one pickle for a run on a cluster and one for a simulation. A pickle can call any function of any
module. Here it is decoded by a reader that makes numbers, texts and containers, and calls nothing else.

The pickle has the response time of each job and, of each round, the GPUs of its jobs. It lacks the arrivals, which are
those of the trace, and the instants of the rounds. Rounds of a simulation begin at multiples of their length. Those of
a cluster last longer, and are estimated (`round_starts`).
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import FloatArray, Workload
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.observed import NodePeriods, Observed
from tracebed.validation.simulators.simulator import ExternalSimulator, ReadOptions

PICKLE = b"\x80"  # first byte of a pickle of protocol 2 or newer
MARK = b"per_round_schedule"
LARGEST = 2**26  # largest size of a pickle that is decoded, bytes; those of the paper have 0.3 MB
HINT = "give a pickle that the scheduler of Shockwave wrote, unchanged"
ROUNDING_S = 1e-3
SHORTEST_S = 1.0  # A job that ends in a round, and was not in the one before, has run in it for at least this time.


# -- the restricted reader of pickles


class _JobId:
    """A job, or a pair of jobs, as the key of a table. Its other attributes are dropped."""

    job: object = None

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.job = state.get("_job0") if isinstance(state, dict) else None


class _DType:
    """The type of a number of numpy: its code, such as `f8`."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment: a number is decoded as little-endian, as on the machines of the runs."""


SCALARS = {"f8": "<d", "f4": "<f", "i8": "<q", "i4": "<i", "u8": "<Q", "u4": "<I", "b1": "<?"}
"""Code of a type of numpy -> format of `struct`."""


def _scalar(kind: object, content: object) -> float | int | bool:
    """Return the number of numpy that a pickle describes."""
    form = SCALARS.get(kind.code) if isinstance(kind, _DType) and isinstance(kind.code, str) else None
    if form is None or not isinstance(content, bytes) or len(content) != struct.calcsize(form):
        raise pickle.UnpicklingError("a number of numpy is invalid")
    number: float | int | bool = struct.unpack(form, content)[0]
    return number


ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("job_id_pair", "JobIdPair"): _JobId,
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
}
"""Module and name in a pickle -> what stands for it here. The modules of the names are not imported."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name; refuse any other name."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it needs {module[:40]}.{name[:40]}, which is not a number or a container")
        return ALLOWED[module, name]


def decoded(content: bytes, where: str) -> dict[str, Any]:
    """Return the table in a pickle.

    Raises:
        InputError: the pickle is damaged or too large, or names a class or a function that is not one of `ALLOWED`.
    """
    if len(content) > LARGEST:
        raise InputError(f"is a pickle of more than {LARGEST // 2**20} MiB", where=where, hint=HINT)
    try:
        table = _Unpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise InputError(f"the pickle is refused: {error}", where=where, hint=HINT) from error
    if not isinstance(table, dict):
        raise InputError("the pickle is not a table of results", where=where, hint=HINT)
    return table


# -- the results


class Results(NamedTuple):
    """What a pickle says about a run."""

    policy: str
    round_s: float
    """Length of a round without its overheads, s."""
    workers: int
    """Number of GPUs."""
    response: FloatArray
    """Response time of each job, s, shape (jobs,)."""
    rounds: list[dict[int, tuple[int, ...]]]
    """Of each round: job -> its GPUs."""


def results_of(file: Input) -> Results:
    """Return the results in a file. Raises InputError if a value is missing or invalid."""
    table = decoded(file.data, file.where)

    def invalid(name: str) -> InputError:
        return InputError(f"{name} is missing or invalid", where=file.where, hint=HINT)

    policy, round_s, usage = (table.get(name) for name in ("policy", "time_per_iteration", "utilization_list"))
    if not isinstance(policy, str):
        raise invalid("policy")
    if not _is_number(round_s) or not 0 < round_s < np.inf:
        raise invalid("time_per_iteration")
    if not isinstance(usage, list) or not usage:
        raise invalid("utilization_list")
    response = table.get("jct_list")
    if not isinstance(response, list) or not response or not all(_is_number(each) and each >= 0 for each in response):
        raise invalid("jct_list")
    rounds, known = table.get("per_round_schedule"), range(len(response))
    if not isinstance(rounds, list):
        raise invalid("per_round_schedule")
    for each in rounds:
        if not isinstance(each, dict) or not all(type(job) is int and job in known for job in each):
            raise invalid("per_round_schedule")
        held = [gpu for gpus in each.values() if isinstance(gpus, tuple) for gpu in gpus]
        good = all(isinstance(gpus, tuple) and gpus for gpus in each.values()) and len({*held}) == len(held)
        if not good or not all(type(gpu) is int and 0 <= gpu < len(usage) for gpu in held):
            raise invalid("per_round_schedule")
    return Results(policy, float(round_s), len(usage), np.array(response, dtype=np.float64), rounds)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


# -- when rounds begin


class Rounds(NamedTuple):
    """The starts of the rounds, and how far the true ones may be from them."""

    starts: FloatArray
    """Start of each round, and the end of the last one, s, shape (rounds + 1,)."""
    error_s: FloatArray
    """Half the width of the bounds, s, shape (rounds + 1,); 0: the starts are exact."""


def round_starts(
    arrival: FloatArray,
    end: FloatArray,
    first: Sequence[int],
    last: Sequence[int],
    before: Sequence[bool],
    rounds: int,
    round_s: float,
) -> Rounds:
    """Return when rounds begin, from the arrivals and ends of the jobs and their first and last rounds.

    Multiples of the length of a round are exact where each job arrives before its first round and ends within its last
    one, or the one before: so it is in a simulation. On a cluster a round lasts at least its length. The scheduler
    chooses the jobs of a round halfway through the round before, and keeps the choice if a job of both rounds ends in
    between. So a job arrives before the choice for its first round. It ends before the round after its last one, and
    after the start of its last one, or of the one before if that was its round, too. The estimate is the shortest path
    between these bounds: rounds between two known instants are equally long.

    Args:
        arrival: arrival of each job, s, shape (jobs,).
        end: end of each job, s, shape (jobs,).
        first: first round of each job.
        last: last round of each job.
        before: whether each job was also in the round before its last one.
        rounds: number of rounds.
        round_s: least length of a round, s.
    """
    begin, final = np.asarray(first), np.asarray(last)
    multiples: FloatArray = round_s * np.arange(rounds + 1, dtype=np.float64)
    exact = (arrival <= multiples[begin] + ROUNDING_S) & (end <= multiples[final + 1] + ROUNDING_S)
    if (exact & (end >= multiples[np.maximum(final - 1, 0)] - ROUNDING_S)).all():
        return Rounds(multiples, np.zeros(rounds + 1))
    low, high = np.full(rounds + 1, -np.inf), np.full(rounds + 1, np.inf)
    np.maximum.at(low, begin, arrival + np.where(begin > 0, round_s / 2, 0.0))
    np.maximum.at(low, final + 1, end)
    np.minimum.at(high, final, end + np.where(before, round_s, -SHORTEST_S))
    low[0] = max(low[0], 0.0)
    low, high = low - multiples, high - multiples  # in the time beyond the least lengths, starts never decrease
    low = np.maximum.accumulate(low)
    high = np.minimum.accumulate(high[::-1])[::-1]
    high[-1] = low[-1]  # the last round ends with the last job
    high = np.maximum(np.minimum(high, low[-1]), low)  # the first bound holds if a round took longer than it may
    return Rounds(multiples + taut_string(low, high), (high - low) / 2)


def taut_string(low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the shortest path over 0, 1, ... between two bounds, shape as `low`. It begins in the middle."""
    path = np.empty(len(low))
    at, value = 0, (low[0] + high[0]) / 2
    path[0] = value
    while at < len(low) - 1:
        # The widest range of slopes that meets the bounds of all points up to the next bend.
        least, most, least_at, most_at = -np.inf, np.inf, at, at
        bend = None
        for point in range(at + 1, len(low)):
            below, above = (low[point] - value) / (point - at), (high[point] - value) / (point - at)
            if below > most:
                bend = (most_at, most)
                break
            if above < least:
                bend = (least_at, least)
                break
            if below >= least:
                least, least_at = below, point
            if above <= most:
                most, most_at = above, point
        if bend is None:
            slope = ((low[-1] + high[-1]) / 2 - value) / (len(low) - 1 - at)
            bend = (len(low) - 1, min(max(slope, least), most))
        to, slope = bend
        path[at + 1 : to + 1] = value + slope * np.arange(1, to - at + 1)
        at, value = to, float(path[to])
    return path


# -- the run


def recognizes(path: Path) -> bool:
    """Return whether a file is a pickle with the rounds of a schedule."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    file = Input.at(path)
    return file.head.startswith(PICKLE) and MARK in file.data


def read(path: Path, workload: Workload | None, options: ReadOptions) -> Run:
    """Read the results of a run. The jobs are those of the trace, numbered from 0, whose arrivals the pickle lacks."""
    file = Input.at(path)
    if workload is None:
        hint = "name the trace of the jobs: import --workload jobs.trace"
        raise InputError("the arrivals of the jobs are not in the file", where=file.where, hint=hint)
    results = results_of(file)
    arrival, number = workload.floats("submit_time"), len(results.response)
    if number != len(workload):
        what = f"has {number:,} jobs, and the workload {len(workload):,}"
        raise InputError(what, where=file.where, hint="name the trace of this run (import --workload)")
    end = arrival + results.response
    held: dict[int, list[tuple[int, tuple[int, ...]]]] = {job: [] for job in range(number)}
    for count, each in enumerate(results.rounds):
        for job, gpus in each.items():
            held[job].append((count, gpus))
    if never := [job for job, own in held.items() if not own]:
        raise InputError(f"job {never[0]} ended and was in no round", where=file.where, hint=HINT)
    first, last = ([own[at][0] for own in held.values()] for at in (0, -1))
    before = [len(own) > 1 and own[-2][0] == own[-1][0] - 1 for own in held.values()]
    rounds = round_starts(arrival, end, first, last, before, len(results.rounds), results.round_s)
    begin = np.clip(rounds.starts[first], arrival, end)
    error_s = float(rounds.error_s[first].max())
    table = pd.DataFrame(
        {
            "job_id": [str(job) for job in range(number)],
            "submit": arrival,
            "start": begin,
            "end": end,
            "nodes": [float(len(own[0][1])) for own in held.values()],
        }
    )
    estimated = [f"the rounds began up to {error_s:.0f} s before or after their estimated starts"] if error_s else []
    observed = Observed(
        jobs=table,
        source=file.source,
        where=file.where,
        place=lambda row: f"{file.where}: job {row}",
        format="shockwave",
        program="shockwave",
        policy=results.policy,
        nodes=[NodeFacts(f"gpu{gpu}", 1) for gpu in range(results.workers)] if options.nodes is None else None,
        allocations=_periods(held, rounds.starts, begin, end).allocations(),
        resolution_s=0.0,
        match="id",
        facts={"round_s": results.round_s, "rounds": len(results.rounds), "round_error_s": error_s},
        warnings=[*estimated, "jobs held no GPU in some of the rounds between their start and their end"],
    )
    return run_of(observed, workload, options)


def _periods(
    held: Mapping[int, list[tuple[int, tuple[int, ...]]]], starts: FloatArray, begin: FloatArray, end: FloatArray
) -> NodePeriods:
    """Return the periods in which each job held its GPUs. Consecutive rounds on a GPU are one period."""
    rows: list[tuple[int, int, float, float]] = []
    for job, own in held.items():
        if len(own) > 1 and own[-2][0] == own[-1][0] - 1 and starts[own[-1][0]] >= end[job]:
            own = own[:-1]  # chosen for one more round before it ended
        open_periods: dict[int, int] = {}  # GPU -> the round since which the job holds it
        for place, (count, gpus) in enumerate(own):
            following = own[place + 1] if place + 1 < len(own) else (None, ())
            for gpu in gpus:
                since = open_periods.setdefault(gpu, count)
                if following[0] == count + 1 and gpu in following[1]:
                    continue
                del open_periods[gpu]
                final = place + 1 == len(own)
                until = end[job] if final else min(starts[count + 1], end[job])
                rows.append((job, gpu, max(starts[since], begin[job]), until))
    jobs, nodes, start, stop = (np.array(column) for column in zip(*rows, strict=True))
    return NodePeriods(jobs.astype(np.int64), nodes.astype(np.int64), start, stop)


SIMULATOR = ExternalSimulator(
    name="shockwave", title="results of the schedulers Gavel and Shockwave", read=read, recognizes=recognizes
)
"""Pickles of runs and simulations by the program of Zheng et al."""
