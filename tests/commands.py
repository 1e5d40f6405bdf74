"""Commands of tracebed in the process of a test."""

from __future__ import annotations

import click
from click.testing import CliRunner, Result

from tracebed.cli import tracebed
from tracebed.ground.errors import TracebedError


def call(*words: object) -> Result:
    """Run a command. The error of a user is in the result; any other error is raised."""
    result = CliRunner().invoke(tracebed, [str(word) for word in words], standalone_mode=False)
    if result.exception and not isinstance(result.exception, SystemExit | TracebedError | click.ClickException):
        raise result.exception
    return result
