"""The table of peers, printed at the end of the session regardless of capturing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.oracles.peer_schedules import HEADER

LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Return a function that adds a line to the table."""
    return pytestconfig.stash.setdefault(LINES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    terminalreporter.section("from the SWF to the schedule; times as fast, other starts: against the peer")
    terminalreporter.write_line(HEADER)
    for line in config.stash.get(LINES, []):
        terminalreporter.write_line(line)
