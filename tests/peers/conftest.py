"""The table of peers, printed when all is done, whatever was captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Return a function that adds a line to the table."""
    return pytestconfig.stash.setdefault(LINES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    terminalreporter.section("CPU seconds from the SWF to the schedule; the rest as against the peer")
    for line in config.stash.get(LINES, []):
        terminalreporter.write_line(line)
