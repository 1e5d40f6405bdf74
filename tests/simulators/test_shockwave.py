"""Results of Gavel and Shockwave: pickles that call nothing, instants of rounds, and traces as workloads."""

from __future__ import annotations

import itertools
import pickle
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.commands import call
from tracebed.ground.errors import InputError, Tolerated
from tracebed.validation.simulators.reading import form_of
from tracebed.validation.simulators.shockwave import decoded, round_starts, taut_string

ROUND_S = 120.0
TRACE = """\
ResNet-18 (batch size 32)\tpython3 main.py\tcifar10\t--num_steps\t1\t6000\t1\tstatic\t1\t-1.000000\t300\t0
LM (batch size 10)\tpython3 main.py\twikitext2\t--steps\t1\t9000\t2\tgns\t1\t-1.000000\t200\t30
LM (batch size 10)\tpython3 main.py\twikitext2\t--steps\t1\t9000\t1\taccordion\t1\t-1.000000\t150\t130
"""
ROUNDS = [{0: (0,)}, {0: (0,), 1: (1, 2)}, {1: (1, 2), 2: (0,)}, {0: (1,), 2: (0,)}, {0: (1,)}]
"""A job on one GPU that stands back for another, and later continues on another GPU."""
ENDS = [560.0, 330.0, 410.0]


@pytest.fixture
def key() -> Iterator[Callable[[int], object]]:
    """The class of keys of the scheduler, in a module of its name."""
    module = types.ModuleType("job_id_pair")

    class JobIdPair:
        def __init__(self, job: int) -> None:
            self._job0, self._job1, self._singletons = job, None, (self,)

    JobIdPair.__module__, JobIdPair.__qualname__ = "job_id_pair", "JobIdPair"
    module.JobIdPair = JobIdPair  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "job_id_pair", module)
        yield JobIdPair


def results(rounds: Any = ROUNDS, ends: Any = ENDS, **others: Any) -> dict[str, Any]:
    """Return the table of a run of the jobs of `TRACE` on three GPUs."""
    arrivals = [0.0, 30.0, 130.0]
    return {
        "policy": "max_min_fairness",
        "time_per_iteration": 120,
        "utilization_list": [np.float64(0.5)] * 3,
        "jct_list": [np.float64(end - arrival) for end, arrival in zip(ends, arrivals, strict=True)],
        "per_round_schedule": rounds,
    } | others


def read(folder: Path, table: Mapping[str, Any], side: Any = "real") -> tb.Run:
    (folder / "jobs.trace").write_text(TRACE)
    (folder / "run.pickle").write_bytes(pickle.dumps(table))
    with pytest.warns(Tolerated, match=r"run time that at the first one \(2 times\)"):
        workload = tb.read(folder / "jobs.trace")
    return tb.import_run(folder / "run.pickle", workload=workload, side=side)


def test_a_simulation_has_rounds_at_multiples_of_their_length(tmp_path: Path) -> None:
    run = read(tmp_path, results(), side="predicted")
    assert run.info.imported["round_error_s"] == 0
    assert (run.info.policy, run.total_nodes, run.info.source) == ("max_min_fairness", 3, "shockwave")
    assert run.jobs["start"].tolist() == [0, 120, 240]
    assert run.jobs["end"].tolist() == ENDS
    assert run.jobs["run_time"].tolist() == [300, 200, 150]
    held = run.allocations.sort_values(["job_id", "start"])[["job_id", "node", "count", "start", "end"]]
    assert held.to_numpy().tolist() == [
        *(["0", 0, 1, 0, 240], ["0", 1, 1, 360, 560]),
        *(["1", 1, 2, 120, 330], ["2", 0, 1, 240, 410]),
    ]


def test_rounds_of_a_cluster_are_between_what_arrivals_and_ends_allow(tmp_path: Path) -> None:
    run = read(tmp_path, results(ends=[700.0, 400.0, 520.0]))  # the last round begins after 520 s, not at 480 s
    starts, error_s = run.jobs["start"].to_numpy(), run.info.imported["round_error_s"]
    assert 0 < error_s <= 60
    assert any("up to" in text for text in run.info.warnings)
    assert starts[0] >= 0 and starts[1] >= 120 and starts[2] >= 250  # chosen in the middle of the round before
    assert run.jobs["end"].tolist() == [700, 400, 520]
    second = run.allocations[run.allocations["job_id"] == "0"].sort_values("start")
    assert second["start"].to_numpy()[1] >= 400  # not before the end of job 1 on the same GPU
    run.save(tmp_path / "saved")
    assert tb.Run.load(tmp_path / "saved").metrics()["utilization"] == pytest.approx(run.metrics()["utilization"])


def test_the_command_recognizes_trace_and_results_and_needs_the_trace(
    tmp_path: Path, key: Callable[[int], object]
) -> None:
    run_times = {key(job): {0: np.float64(100.0)} for job in range(3)}
    read(tmp_path, results(envy_ratios=OrderedDict({0: 1.0}), job_run_time=run_times))
    assert form_of(tmp_path / "run.pickle") == "shockwave"
    files = (tmp_path / "run.pickle", "--workload", tmp_path / "jobs.trace", "--as", "real")
    assert call("import", *files, "-o", tmp_path / "run").exception is None
    failed = call("import", tmp_path / "run.pickle", "--as", "real", "-o", tmp_path / "other")
    assert "the arrivals of the jobs are not in the file (name the trace" in str(failed.exception)


class Harmless:
    """A class that tracebed does not know."""


class Call:
    """An object whose pickle calls a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("called",)


@pytest.mark.parametrize(
    "value",
    [
        *(Harmless(), Harmless, Call(), print, types.SimpleNamespace(a=1), Path(), np.zeros(2), {1: [Harmless()]}),
        *(np.complex128(1), np.float64, np.dtype("O"), bytearray(b"x"), frozenset),
    ],
)
def test_a_class_or_function_in_a_pickle_is_refused(
    value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = isinstance(value, np.dtype)  # the type of a number alone is decoded, and of no use
    if not refused:
        with pytest.raises(InputError, match=r"here: the pickle is refused: .*(not a number or a container|invalid)"):
            decoded(pickle.dumps({"policy": value}), "here")
    with pytest.raises(InputError):
        read(tmp_path, results(policy=value))
    assert "called" not in capsys.readouterr().out


def test_containers_and_numbers_are_decoded(key: Callable[[int], object]) -> None:
    values = [1, 2.5, "a", b"b", None, True, (1,), {2}, frozenset({3}), OrderedDict({4: [5]})]
    assert decoded(pickle.dumps({"a": values}), "here") == {"a": values}
    numbers = [np.float64(1.5), np.float32(0.5), np.int64(-7), np.int32(8), np.uint8(1), np.bool_(True)]
    assert decoded(pickle.dumps({"a": [*numbers[:4], numbers[5]]}), "here") == {"a": [1.5, 0.5, -7, 8, True]}
    with pytest.raises(InputError, match="a number of numpy is invalid"):
        decoded(pickle.dumps({"a": numbers[4]}), "here")
    (job,) = decoded(pickle.dumps({key(7): 1}), "here")
    assert vars(job) == {"job": 7}


@pytest.mark.parametrize("content", [b"\x80", b"\x80\x04.", b"text", pickle.dumps({1: 2})[:-1], pickle.dumps([1])])
def test_a_damaged_pickle_is_an_input_error(content: bytes) -> None:
    with pytest.raises(InputError, match="here: the pickle is"):
        decoded(content, "here")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_round_schedule": None}, "per_round_schedule is missing or invalid"),
        ({"per_round_schedule": [{0: (0,), 1: (0, 1)}]}, "per_round_schedule is missing or invalid"),  # a GPU twice
        ({"per_round_schedule": [{0: (3,)}]}, "per_round_schedule is missing or invalid"),
        ({"per_round_schedule": [{"0": (1,)}]}, "per_round_schedule is missing or invalid"),
        ({"per_round_schedule": ROUNDS[:2]}, "job 2 ended and was in no round"),
        ({"time_per_iteration": 0}, "time_per_iteration is missing or invalid"),
        ({"utilization_list": []}, "utilization_list is missing or invalid"),
        ({"policy": 3}, "policy is missing or invalid"),
        ({"jct_list": [1.0, 2.0]}, "has 2 jobs, and the workload 3|per_round_schedule is missing or invalid"),
        ({"jct_list": [1.0, -2.0, 1.0]}, "jct_list is missing or invalid"),
    ],
)
def test_invalid_results_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, results() | changes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (TRACE.splitlines()[0].replace("\t300\t", "\tx\t"), ":4: steps, GPUs, run time or arrival is not a number"),
        (TRACE.splitlines()[0], ":4: arrives before the line above it"),
        (TRACE.splitlines()[0].replace("\t1\tstatic", "\t0\tstatic"), ":4: has 0 GPUs"),
        ("a\tb", ":4: has 2 fields, or no mode in the eighth"),
    ],
)
def test_an_invalid_line_of_a_trace_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.trace").write_text(TRACE + line + "\n")
    with pytest.raises(InputError) as error:
        tb.read(tmp_path / "jobs.trace")
    assert message in str(error.value)


steps = st.lists(st.integers(0, 6), min_size=2, max_size=6)


@given(steps, st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_the_taut_string_is_the_shortest_path_between_the_bounds(rises: list[int], widths: list[int]) -> None:
    """Beside all paths over half steps: none is shorter."""
    low = np.cumsum(np.array(rises, dtype=float)) / 2
    high = low + np.array(widths[: len(low)]) / 2
    high[-1] = low[-1]
    high = np.minimum.accumulate(high[::-1])[::-1]  # starts never decrease
    path = taut_string(low, high)
    assert (path >= low - 1e-9).all() and (path <= high + 1e-9).all()
    assert (np.diff(path) >= -1e-9).all()  # starts of rounds stay apart by their length
    length = np.hypot(1, np.diff(path)).sum()
    places = [np.arange(low[at], high[at] + 0.25, 0.5) for at in range(1, len(low))]
    for other in itertools.islice(itertools.product(*places), 20_000):
        assert length <= np.hypot(1, np.diff([path[0], *other])).sum() + 1e-9


@given(st.data())
def test_the_bounds_hold_the_true_starts(data: st.DataObject) -> None:
    """On a drawn cluster whose rounds last up to half a length longer, no true start is farther than the error says."""
    lengths = data.draw(st.lists(st.floats(0, 59), min_size=2, max_size=12))
    rounds = len(lengths)
    true = np.cumsum([data.draw(st.floats(0, 300)), *(ROUND_S + more for more in lengths)])
    arrival, end, first, last, before = [], [], [], [], []
    for _ in range(data.draw(st.integers(1, 8))):
        begin = data.draw(st.integers(0, rounds - 1))
        final = data.draw(st.integers(begin, rounds - 1))
        chosen = true[begin - 1] + ROUND_S / 2 if begin else true[0]
        again = final > begin and data.draw(st.booleans())
        since = true[final - 1] + ROUND_S / 2 if again else true[final] + 1
        arrival.append(data.draw(st.floats(0, chosen)))
        end.append(data.draw(st.floats(since, true[final + 1])))
        first.append(begin)
        last.append(final)
        before.append(again)
    last[-1], before[-1], end[-1] = rounds - 1, False, float(true[-1])
    made = round_starts(np.array(arrival), np.array(end), first, last, before, rounds, ROUND_S)
    if made.error_s.any():
        assert (np.abs(made.starts - true) <= 2 * made.error_s + 1e-6).all()
        assert (np.diff(made.starts) >= ROUND_S - 1e-6).all()
