"""Options in messages: each belongs to the command that the message names, or to each command that may print it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.recorders import sacct_dumps
from tracebed.cli import tracebed

ROOT = Path(__file__).parents[2]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def commands(group: click.Group = tracebed, above: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield the name of each command, and its options."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        elif command is not None:
            given = [option for option in command.get_params(context) if isinstance(option, click.Option)]
            yield f"{above}{name}", {name for option in given for name in (*option.opts, *option.secondary_opts)}


COMMANDS = dict(commands())
OURS = set().union(*COMMANDS.values())
GENERATORS = tuple(name for name in COMMANDS if name.startswith("generate "))
READERS = ("import", "compare")
"""Commands that read tables of other programs. `validate` reads them after a file, whose keys are these options."""
PRINTED_BY: dict[str, tuple[str, ...]] = {
    "converters/tracebed/converters/cleaning/": ("clean",),
    "converters/tracebed/converters/malleability.py": ("malleable",),
    "converters/tracebed/converters/scaling.py": ("scale",),
    "converters/tracebed/ground/outputs.py": (
        *GENERATORS,
        "convert",
        "clean",
        "scale",
        "malleable",
        "replay",
        "simulate",
        "export",
    ),
    "orchestrator/tracebed/orchestrator/calibrating/": ("nodes calibrate",),
    "orchestrator/tracebed/orchestrator/replay/": ("replay",),
    "orchestrator/tracebed/orchestrator/scheduling/": ("simulate", "replay"),
    "orchestrator/tracebed/slurm/simulation/forecast.py": ("forecast",),
    "orchestrator/tracebed/slurm/": ("simulate",),
    "orchestrator/tracebed/orchestrator/simulation/": ("simulate",),
    "orchestrator/tracebed/orchestrator/watching/openmetrics.py": ("watch", "replay"),
    "orchestrator/tracebed/orchestrator/watching/follower.py": ("watch",),
    "validation/tracebed/api/runs.py": ("simulate", "replay"),
    "validation/tracebed/studies/board/": ("validate",),
    "validation/tracebed/studies/": ("experiment",),
    "validation/tracebed/validation/experiments/": ("experiment",),
    "validation/tracebed/validation/export/": ("export",),
    "validation/tracebed/validation/fitting/simulators.py": ("validate",),
    "validation/tracebed/drivers/accasim.py": ("simulate",),
    "validation/tracebed/drivers/elastisim/reader.py": READERS,
    "validation/tracebed/drivers/elastisim/": ("simulate",),
    "validation/tracebed/validation/simulators/": READERS,
    "validation/tracebed/validation/verdict/": ("compare",),
}
"""Beginning of the path of modules -> the commands that print their messages; the first that fits counts."""
OF_OTHERS = ("ansible-inventory", "oarstat", "sacct", "sbatch", "squeue", "Slurm's", "Slurm")
"""Programs whose options are named like ours."""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each literal with a blank, as messages have; values in f-strings are `{}`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield node.lineno, text


def wrong(text: str, printed_by: tuple[str, ...]) -> list[str]:
    """Return the options in a message that the command before them, or else a command that prints it, lacks."""
    found = []
    for option in OPTION.finditer(text):
        before = text[: option.start()]
        if option[0] not in OURS or before.endswith("{} ") or any(word in before for word in OF_OTHERS):
            continue
        named = [name for name in COMMANDS if re.search(rf"(?<![\w-]){name.split()[-1]}(?![\w-])", before)]
        if any(option[0] in COMMANDS[name] for name in named):
            continue
        if not printed_by or not all(option[0] in COMMANDS[name] for name in printed_by):
            found.append(option[0])
    return found


def test_a_message_names_only_options_that_its_command_has() -> None:
    found = []
    for package in ("converters", "orchestrator", "validation", "benchmarks", "inventory"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            printed_by = next((by for begin, by in PRINTED_BY.items() if name.startswith(begin)), ())
            if "/cli/" not in name and name != "validation/tracebed/operators/commands.py":
                found += [f"{name}:{line}: {text}" for line, text in messages(path) if wrong(text, printed_by)]
    assert not found, "\n".join(found)


LOGS = {
    "no time zone": sacct_dumps.text(sacct_dumps.rows(jobs=20, seed=1)),
    "further columns": sacct_dumps.text(
        ({**row, "Comment": "c"} for row in sacct_dumps.rows(jobs=20, seed=1)), (*sacct_dumps.FIELDS, "Comment")
    ),
    "two clusters": sacct_dumps.text(
        {**row, "Cluster": "red" if number % 2 else "blue"}
        for number, row in enumerate(sacct_dumps.rows(jobs=20, seed=1))
    ),
    "no format": "a,b\n1,2\n",
    "a field too few": "; UnixStartTime: 0\n1 0 0 5 1\n",
}
READING = {
    "describe": (),
    "describe --system": ("--system", "2x4"),
    "convert": ("-o", "w.parquet"),
    "clean": ("--recipe", "sacct", "-o", "w.parquet"),
    "scale": ("--nodes", "2", "-o", "w.parquet"),
    "simulate": ("--policy", "easy", "--nodes", "2", "-o", "run"),
    "import": ("--as", "real", "-o", "run"),
    "whatif": ("slurm.conf", "--members", "2"),
}


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("what", LOGS)
def test_a_command_names_only_options_that_it_has(command: str, what: str, call: Callable[..., Any]) -> None:
    Path("log.txt").write_text(LOGS[what])
    Path("slurm.conf").write_text(sacct_dumps.CONF)
    name = command.partition(" ")[0]
    said = call(name, "log.txt", *READING[command])[2]
    assert [line for line in said.splitlines() if wrong(line, (name,))] == []
