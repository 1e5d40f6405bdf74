"""Pictures of workloads: all panels with data, and no empty panel."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from tracebed.converters.description import describe
from tracebed.converters.models.cirne import cirne
from tracebed.converters.pictures import plot
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError

OCCUPATION, WEEKDAYS, HOURS = "Node occupation", "Arrivals by hour and weekday", "Arrivals by hour of the day"
OTHERS = (
    "Cumulative jobs and node hours by size",
    "Cumulative jobs and node hours by run time",
    "Requested nodes",
    "Run times and time limits",
    "Offered load",
)


def log(**columns: Any) -> dict[str, Any]:
    """Return the facts of a log with all data that a picture shows; `columns` replaces some columns."""
    count = 200
    random = np.random.default_rng(1)
    submit = np.sort(random.uniform(0, 1e6, count))
    run = np.exp(random.uniform(0, 10, count))
    table = pd.DataFrame(
        {
            "job_id": [str(number) for number in range(count)],
            "submit_time": submit,
            "run_time": run,
            "time_limit": 2 * run,
            "nodes": random.integers(1, 40, count),
            "logged_start": submit + 10,
            "logged_end": submit + 10 + run,
        }
    ).assign(**columns)
    return describe(Workload(table, Provenance(system=System(64, 8), unix_start=1.3e9, time_zone="Asia/Tokyo")))


Planned = Callable[..., Figure]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Return a function from the facts of one or two workloads to their figure, which is not rendered."""

    def plan(*facts: dict[str, Any]) -> Figure:
        figures: list[Figure] = []
        with monkeypatch.context() as patch:
            patch.setattr(Figure, "savefig", lambda figure, file, **_: figures.append(figure))
            plot(facts[-1], tmp_path / "w.png", before=facts[0] if len(facts) == 2 else None)
        return figures[0]

    return plan


def words(figure: Figure) -> str:
    """Return the texts of a figure, a line each."""
    return "\n".join(text.get_text() for text in figure.findobj(Text))


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture_is_drawn_and_is_the_same_twice(suffix: str, magic: bytes, tmp_path: Path) -> None:
    facts = describe(cirne(50, seed=1))
    for name in ("a", "b"):
        plot(facts, tmp_path / f"{name}{suffix}")
    first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("a", "b"))
    assert first.startswith(magic)
    assert first == second


def test_a_log_has_every_panel(tmp_path: Path) -> None:
    plot(log(), tmp_path / "w.svg")
    text = (tmp_path / "w.svg").read_text()
    for title in (OCCUPATION, WEEKDAYS, *OTHERS):
        assert title in text
    assert HOURS not in text
    assert "capacity 64" in text


@pytest.mark.parametrize(
    ("columns", "absent"),
    [
        ({"logged_start": math.nan}, {OCCUPATION}),
        ({"logged_end": 0.0}, {OCCUPATION}),
        ({"nodes": 0}, {OCCUPATION, OTHERS[0], OTHERS[2], OTHERS[4]}),
        ({"run_time": math.nan, "time_limit": math.nan}, {OTHERS[1], OTHERS[3], OTHERS[4]}),
        ({"submit_time": 0.0}, {OTHERS[4]}),
    ],
)
def test_an_empty_panel_is_omitted(columns: dict[str, Any], absent: set[str], planned: Planned) -> None:
    text = words(planned(log(**columns)))
    assert {title for title in (OCCUPATION, WEEKDAYS, *OTHERS) if title not in text} == absent


def test_before_and_after_have_the_same_scale(planned: Planned) -> None:
    before = log(nodes=np.arange(200) + 1, run_time=1e5, logged_end=3e6)
    axes = planned(before, log()).get_axes()
    assert len(axes) == 14
    for left, right in zip(axes[::2], axes[1::2], strict=True):
        assert left.get_xlim() == right.get_xlim()
        assert left.get_ylim() == right.get_ylim()
        assert left.get_title(loc="left").removesuffix("before") == right.get_title(loc="left").removesuffix("after")
    left, right = (ax.collections[0] for ax in axes[10:12])
    assert left.get_clim() == right.get_clim()


def test_data_of_only_one_of_two_workloads_is_drawn_once(planned: Planned) -> None:
    text = words(planned(log(logged_start=math.nan), log()))
    assert f"{OCCUPATION}, after" in text
    assert f"{OCCUPATION}, before" not in text
    assert "before: not known" in text


def test_a_workload_with_dates_compared_with_one_without_has_seconds(planned: Planned) -> None:
    text = words(planned({**log(), "clock": None}, log()))
    assert HOURS in text
    assert WEEKDAYS not in text
    assert text.count("days since time 0") >= 4


def test_an_end_beyond_every_calendar_is_drawn_in_days(tmp_path: Path) -> None:
    plot(log(logged_end=1e15), tmp_path / "w.svg")
    assert "days since time 0" in (tmp_path / "w.svg").read_text()


@pytest.mark.parametrize(
    "columns",
    [
        {"nodes": 1, "submit_time": 0.0, "run_time": 1e15},
        {"nodes": 10_000_000, "submit_time": np.linspace(0, 2.9 * 86_400, 200), "run_time": 1e-9},
        {
            "nodes": np.arange(200) ** 2 + 1,
            "submit_time": np.linspace(0, 4.2 * 365 * 86_400, 200),
            "logged_end": lambda table: table["logged_start"] + 1e-9,
        },
    ],
)
@pytest.mark.filterwarnings("error")
def test_unusual_workloads_are_drawn_without_a_warning(columns: dict[str, Any], tmp_path: Path) -> None:
    plot(log(**columns), tmp_path / "w.png")
    assert (tmp_path / "w.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("error")
def test_one_job_is_drawn(tmp_path: Path) -> None:
    plot(describe(cirne(1)), tmp_path / "w.png")
    assert (tmp_path / "w.png").stat().st_size > 10_000


def test_another_suffix_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg"):
        plot(log(), tmp_path / "w.gif")
