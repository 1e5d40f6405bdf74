"""What a workload is like, in numbers and in pictures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebed.converters.description import describe, hours, offered_load, plot, quantiles, size_histogram
from tracebed.converters.models.cirne import cirne
from tracebed.converters.scaling import scale
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.errors import InputError, Tolerated

MONDAY = 1_283_731_200.0  # 2010-09-06 00:00 UTC


def week(**provenance: object) -> Workload:
    table = pd.DataFrame(
        {
            "job_id": ["a", "b", "c", "d"],
            "submit_time": [0.0, 3600.0, 7200.0, 86_400.0],
            "run_time": [100.0, 50.0, math.nan, 5000.0],
            "time_limit": [200.0, 100.0, 100.0, math.nan],
            "nodes": [1, 2, 4, 0],
            "kind": ["rigid", "malleable", "rigid", "rigid"],
        }
    )
    known = {"system": System(4, 8), "unix_start": MONDAY, "time_zone": "Asia/Tokyo"}
    return Workload(table, Provenance(**(known | provenance)))  # type: ignore[arg-type]


def test_the_statistics() -> None:
    facts = describe(week())
    assert facts["jobs"] == 4
    assert facts["span_s"] == 86_400.0
    assert facts["offered_load"] == (100 + 2 * 50) / (4 * 86_400)
    assert facts["nodes"]["max"] == 4
    assert facts["run_time_s"]["median"] == 100.0
    assert facts["accuracy"]["mean"] == 0.5
    assert facts["interarrival_s"]["max"] == 79_200.0
    assert facts["kinds"] == {"rigid": 3, "malleable": 1}
    assert facts["unknown"] == {"run_time": 1, "time_limit": 1, "nodes": 1}
    assert facts["first_submit"] == "2010-09-06T09:00:00+09:00"
    assert [facts["arrivals_by_hour"][hour] for hour in (9, 10, 11)] == [2, 1, 1]
    assert facts["arrivals_by_weekday"]["Mon"] == 3
    assert facts["arrivals_by_weekday"]["Tue"] == 1
    assert [bin["jobs"] for bin in facts["nodes_histogram"]] == [1, 1, 1]
    assert sum(bin["jobs"] for bin in facts["run_time_histogram"]) == 3
    json.dumps(facts, allow_nan=False)


def test_without_a_date_hours_count_from_time_zero() -> None:
    facts = describe(week(unix_start=None))
    assert facts["arrivals_by_weekday"] is None
    assert facts["first_submit"] is None
    assert facts["arrivals_by_hour"][:3] == [2, 1, 1]


def test_an_unknown_time_zone_is_tolerated() -> None:
    with pytest.warns(Tolerated, match="Mars/Base"):
        assert hours(week(time_zone="Mars/Base"))[:3].tolist() == [2, 1, 1]


@pytest.mark.parametrize("start", [-1e12, 1e17, 1e300])
def test_dates_that_no_calendar_has_are_tolerated(start: float) -> None:
    workload = week(unix_start=start)
    with pytest.warns(Tolerated, match="before 1970 or after 2260"):
        assert describe(workload)["first_submit"] is None
    with pytest.raises(InputError, match="submissions span"):
        scale(workload, start=1e9)


def test_load_is_not_known_without_a_system_or_a_span() -> None:
    assert offered_load(week(system=System(None))) is None
    one = Workload(week().table.iloc[:1], week().provenance)
    assert offered_load(one) is None
    facts = describe(one)
    assert facts["offered_load"] is None
    assert facts["interarrival_s"]["mean"] is None


def test_what_scaling_did_to_the_load_is_shown() -> None:
    facts = describe(scale(scale(cirne(100), 16), arrivals=0.5))
    first, second = facts["offered_load_steps"]
    assert first["after"] == second["before"] == second["in_window"]
    assert second["after"] == pytest.approx(2 * second["before"])
    assert facts["offered_load"] == second["after"]
    assert len(facts["steps"]) == 3


@given(st.lists(st.integers(0, 5000), max_size=30))
def test_every_size_is_in_its_bin(sizes: list[int]) -> None:
    histogram = size_histogram(np.array(sizes, dtype=np.int64))
    for low, high, jobs in histogram:
        assert jobs == sum(low <= size <= high for size in sizes)
    assert sum(jobs for _, _, jobs in histogram) == sum(size > 0 for size in sizes)


def test_quantiles_of_nothing_are_nothing() -> None:
    assert set(quantiles(np.array([np.nan])).values()) == {None}


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture_is_drawn(suffix: str, magic: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    plot(cirne(50, seed=1), path)
    assert path.read_bytes().startswith(magic)
    if suffix == ".svg":
        text = path.read_text()
        for title in ("Requested nodes", "Run times and time limits", "Arrivals by hour", "Offered load"):
            assert title in text


@pytest.mark.parametrize("workload", [week(), week(unix_start=None, system=System()), cirne(1)])
def test_sparse_workloads_are_drawn_too(workload: Workload, tmp_path: Path) -> None:
    plot(workload, tmp_path / "w.png")
    assert (tmp_path / "w.png").stat().st_size > 10_000


def test_another_suffix_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg"):
        plot(week(), tmp_path / "w.gif")
