"""The page of a forecast, and the data of its pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.servers import chromium
from tests.slurm.test_forecast import PARTITION, call, folder_of, log_of, running, waiting
from tracebed.operators.forecast_page import drain, starts_by_partition

EVIL = "<b>eve</b>"
RESERVATION = (
    "ReservationName={name} StartTime={begin} EndTime={end} Duration=01:00:00 Nodes=n[1-2] NodeCnt=2 CoreCnt=8 "
    "PartitionName=(null) Flags=MAINT,SPEC_NODES TRES=cpu=8 Users=root Accounts=(null) State=INACTIVE\n"
)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """Two nodes full until 12:40, then a reservation from 13:00 to 14:00, and jobs of 50 min in two partitions."""
    tb.write(log_of(), tmp_path / "log.parquet")
    jobs = [waiting(3, priority=300), waiting(4, priority=200, partition="gpu"), waiting(6, reason="JobHeldUser")]
    jobs[0] = jobs[0].replace("UserId=ann", f"UserId={EVIL}")
    state = folder_of(tmp_path / "state", running(1, "n1"), running(2, "n2"), *jobs)
    (state / "partition.txt").write_text(f"{PARTITION}\n{PARTITION.replace('=main', '=gpu').replace('=YES', '=NO')}\n")
    texts = [
        RESERVATION.format(name=name, begin=f"2026-{begin}", end=f"2026-{end}")
        for name, begin, end in (
            ("service", "01-31T13:00:00", "01-31T14:00:00"),
            ("next-year", "12-31T13:00:00", "12-31T14:00:00"),
            ("over", "01-30T13:00:00", "01-30T14:00:00"),
        )
    ]
    (state / "reservation.txt").write_text("\n".join(texts))
    return state


def test_the_drain_counts_the_jobs_that_still_wait() -> None:
    starts = np.array([[10.0, 10.0, 10.0], [20.0, 30.0, np.nan]])
    table = drain(starts, np.array([0.0, 10.0, 20.0, 30.0]))
    assert table["waiting"].tolist() == [2, 1, 1, 0]
    assert table["high"].tolist() == pytest.approx([2, 1, 1, 0.8])  # a job that one simulation does not start
    assert table["low"].tolist() == pytest.approx([2, 1, 0.2, 0])


def test_each_start_is_counted_once_in_its_partition(queue: Path) -> None:
    found = tb.forecast(queue, log_of(), repetitions=8)
    begin = pd.Timestamp(found.instant).timestamp()
    table, step = starts_by_partition(found, begin, float(np.nanmax(found.starts)))
    assert table[["main", "gpu"]].sum().to_dict() == {"main": 1.0, "gpu": 1.0}
    assert table["time"][0] <= found.instant and step in (300, 900)


def test_a_forecast_has_the_reservations_that_begin_before_its_last_start(queue: Path) -> None:
    found = tb.forecast(queue, log_of(), repetitions=8)
    assert f"{found.table['start'][0]:%H:%M}" == "14:00"  # 50 min do not end before the reservation
    assert found.reservations.to_numpy().tolist() == [
        ["service", pd.Timestamp("2026-01-31T13:00"), pd.Timestamp("2026-01-31T14:00"), "n[1-2]"]
    ]


def test_the_command_writes_the_page_and_its_pictures(queue: Path, tmp_path: Path) -> None:
    call(queue, "--report", str(tmp_path / "queue.html"), "--report", str(tmp_path / "figures"))
    page = (tmp_path / "queue.html").read_text()
    assert "The queue drains on Saturday at 14:0" in page
    assert "service" in page and "next-year" not in page
    assert "(no forecast: JobHeldUser)" in page
    assert EVIL not in page and "&lt;b&gt;eve&lt;/b&gt;" in page
    assert page.count("<figure") == 2
    assert {path.name for path in (tmp_path / "figures").glob("*.csv")} == {"drain.csv", "partitions.csv"}
    call(queue, "--report", str(tmp_path / "queue.html"), "--only", "job=6")  # made again; without a picture
    assert (tmp_path / "queue.html").read_text().count("<figure") == 0


@pytest.mark.slow
@pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium to open the page with (apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 375])
def test_the_page_is_readable_in_a_browser(width: int, queue: Path, tmp_path: Path) -> None:
    page = tb.forecast(queue, log_of(), repetitions=8).page(tmp_path / "queue.html")
    with chromium.Chromium(tmp_path / "profile") as browser:
        opened = chromium.Page(browser, page, width=width, phone=width < 500)
        assert opened.errors() == []
        assert opened.run("document.querySelectorAll('figure').length") == 2
        assert opened.run("document.images.length") == 0
        assert opened.run("document.documentElement.scrollWidth") <= width
