"""Time from the request of a report to its interactive charts, in headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.pages import validated
from tests.runs import large_run
from tests.servers import chromium
from tracebed.validation.report import html

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="no chromium (apt-get install chromium)")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    with chromium.Chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


def test_open_a_report_of_200_000_jobs(benchmark: BenchmarkFixture, browser: chromium.Chromium, tmp_path: Path) -> None:
    found = validated(large_run(200_000, real=True, noise=0.02), large_run(200_000, real=False))
    path = html.write(found, tmp_path / "report.html")

    def open_page() -> None:
        page = chromium.Page(browser, path)
        page.wait_for("document.documentElement.dataset.charts === 'ready'")
        page.close()

    benchmark.extra_info["bytes"] = path.stat().st_size
    benchmark.pedantic(open_page, rounds=5)
