"""The command line as a whole: its size, its groups, and the help of its commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tracebed.cli import COMMANDS, FAMILIES, tracebed
from tracebed.cli.groups import Sectioned

MOST_COMMANDS = 20
"""The steps from a workload to a verdict, and two commands for operators of a cluster: `whatif` and `forecast`."""
MOST_OPTIONS = 118
"""Distinct options of all commands. An option that several commands have counts once."""
WIDTH = 80


def walk(command: click.Command = tracebed, context: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of a command and of all commands below it."""
    context = context or click.Context(command, info_name="tracebed")
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, click.Context(found, parent=context, info_name=name))


CONTEXTS = {context.command_path: context for context in walk()}


def test_the_command_line_has_few_words() -> None:
    options = {
        max(param.opts, key=len)
        for context in CONTEXTS.values()
        for param in context.command.params
        if isinstance(param, click.Option) and not param.hidden
    }
    assert len(COMMANDS) <= MOST_COMMANDS
    assert len(options) <= MOST_OPTIONS, "merge an option with one that exists, or drop one"


def test_each_command_is_in_one_group() -> None:
    assert {family for family, _ in COMMANDS.values()} == {*FAMILIES}
    shown = CliRunner().invoke(tracebed, ["--help"]).output
    places = [shown.index(f"\n{title}:\n") for title in FAMILIES]
    assert places == sorted(places)
    assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("path", CONTEXTS)
def test_the_examples_of_help_fit_a_terminal(path: str) -> None:
    text = CliRunner().invoke(tracebed, [*path.split()[1:], "--help"], terminal_width=WIDTH).output
    examples = re.findall(r"^ +(?:\$ )?tracebed .*$", text, re.MULTILINE)
    assert [line for line in examples if len(line) > WIDTH] == []


def test_long_help_has_sections_and_each_option_once() -> None:
    for path, context in CONTEXTS.items():
        command = context.command
        options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
        if not isinstance(command, Sectioned):
            assert len(options) <= 20, f"{path} has {len(options)} options: give its help sections"
            continue
        names = [name for section in command.sections.values() for name in section]
        assert len(names) == len({*names}) and {*names} <= {option.name for option in options}
        text = command.get_help(context).partition("\nOptions:\n")[2]
        for option in options:
            assert len(re.findall(rf"^  (?:-\w, )?{max(option.opts, key=len)}[ \n]", text, re.MULTILINE)) == 1, (
                option.opts
            )
        common = text[: min(text.index(f"\n{title}:\n") for title in command.sections)]
        assert ("--help" in common and "--output" in common) or "--real" in common


@pytest.mark.parametrize("package", ["mine", "tracebed"])
def test_a_stranger_adds_a_command_and_a_name_of_the_api_by_a_file_and_a_line_each(
    package: str, tmp_path: Path
) -> None:
    """In a package of their own, and in tracebed itself."""
    (tmp_path / "mine.py").write_text(
        'import click\n\n@click.command()\ndef waits() -> None:\n    """Print the waits."""\n'
        '    import tracebed.api as tb\n    click.echo(tb.answer)\n\nanswer = "no wait"\n"""The answer."""\n'
    )
    metadata = tmp_path / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    entries = distribution("tracebed").read_text("entry_points.txt") if package == "tracebed" else ""
    entries = f"{entries}\n[tracebed.commands]\nwaits = mine:waits\n\n[tracebed.api]\nanswer = mine:answer\n"
    (metadata / "entry_points.txt").write_text(entries)
    printed = [
        subprocess.run(
            [sys.executable, "-c", "from tracebed.cli import main; main()", *words],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for words in (["--help"], ["waits"])
    ]
    assert re.search(r"^Further commands:\n  waits  +Print the waits\.$", printed[0], re.MULTILINE)
    assert printed[1] == "no wait\n"
