"""`tracebed recorded`: copies of the recorded suites of the package."""

from __future__ import annotations

from pathlib import Path

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.options import STORE, json_option, output_option
from tracebed.errors import InputError


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@output_option("Folder of the copy; it must not exist.", STORE, required=False)
@json_option
def recorded(name: str | None, output: Path | None, as_json: bool) -> None:
    """Copy the recorded suite NAME: real runs of small workloads, for validating simulators.

    Without NAME, list the suites. The copy has the workloads, the real runs, and suite.yaml for `tracebed validate`.

    \b
    Examples:
      tracebed recorded
      tracebed recorded emulated -o suite
    """
    from tracebed.validation.recorded import recorded_suite, recorded_suites, unpack

    if name is None:
        if output is not None:
            raise InputError("-o is given without the name of a suite", hint="`tracebed recorded` lists the suites")
        suites = list(recorded_suites().values())
        if as_json:
            print_json("tracebed-recorded/1", {"suites": [vars(suite) for suite in suites]})
        else:
            rows = [(f"{each.name}: {each.title}", each.cases, each.runs, each.recorded) for each in suites]
            print_table(["suite", "cases", "runs", "recorded"], rows)
        return
    suite = recorded_suite(name)
    if output is None:
        raise InputError("the folder of the copy is missing", hint=f"tracebed recorded {name} -o FOLDER")
    file = unpack(name, output)
    if as_json:
        print_json("tracebed-recorded/1", {"suites": [vars(suite)], "output": str(output), "file": str(file)})
    else:
        click.echo(f"{file}: {suite.cases} cases, {suite.runs} real runs, {suite.title}")
