"""`python -m tracebed.cli.publish`: publish the results of `tracebed validate` from a job of GitHub or GitLab."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

import tracebed.api as tb
from tracebed.cli.gate import STEP_SUMMARY
from tracebed.ground.errors import TracebedError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--baseline", metavar="FILE", help="Baseline in the repository: the base if the history has no record.")
@click.option("--branch", default="", help="Branch of the history.  [default: no history]")
@click.option("--page", default="", metavar="URL", help="Address of the page of the history, for the comment.")
def publish(folder: Path, baseline: str | None, branch: str, page: str) -> None:
    """Comment on the pull request of this job, or add a record of its commit to the history.

    FOLDER is the output of `tracebed validate`. The token is the value of TRACEBED_TOKEN, or of GITHUB_TOKEN.

    \b
    Exit status: 0 published, or nothing to publish; 2 an error.
    """
    try:
        done = tb.publish_results(folder, baseline or None, branch=branch, page=page)
    except TracebedError as error:
        click.echo(f"tracebed: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(f"tracebed: {done}", err=True)
    if step := os.environ.get(STEP_SUMMARY):
        with Path(step).open("a", encoding="utf-8") as summary:
            summary.write(f"\n{done[0].upper()}{done[1:]}.\n")


if __name__ == "__main__":
    publish(prog_name="python -m tracebed.cli.publish")
