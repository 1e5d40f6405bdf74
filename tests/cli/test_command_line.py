"""The command line as a whole: its size, its groups, and the help of its commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tracebed.cli import COMMANDS, GROUPS, tracebed
from tracebed.cli.sections import Sectioned

MOST_COMMANDS = 20
"""The steps from a workload to a verdict, and two commands for operators of a cluster: `whatif` and `forecast`."""
MOST_OPTIONS = 111
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
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    shown = CliRunner().invoke(tracebed, ["--help"]).output
    places = [shown.index(f"\n{title}:\n") for title in GROUPS]
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
