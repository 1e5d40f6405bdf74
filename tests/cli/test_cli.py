"""The command line as a whole: exit statuses and common options."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.recorders import sacct_dumps
from tracebed import cli
from tracebed.cli import tracebed
from tracebed.ground import extension_errors
from tracebed.ground.errors import ExitCode

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `tracebed describe` raise an unexpected error."""

    def fail(self: object, context: click.Context) -> None:
        raise LookupError("no \x1b[31mshoes")

    # Another test of this process may have a policy in `tests`, whose errors are those of an extension.
    monkeypatch.setattr(extension_errors, "_EXTENSIONS", {})
    command = cli.tracebed.get_command(click.Context(cli.tracebed), "describe")
    monkeypatch.setattr(command, "invoke", fail.__get__(command))


@pytest.mark.usefixtures("broken")
def test_a_crash_is_not_a_verdict(call: Call, tmp_path: Path) -> None:
    """Python would exit with 1, which is the status of an inaccurate prediction."""
    status, out, err = call("describe", "w.parquet")
    assert status == ExitCode.INTERNAL == 70
    assert out == ""
    (line,) = err.splitlines()
    assert "internal error: LookupError: no \\x1b[31mshoes (tracebed 0." in line
    (written,) = (tmp_path / "state" / "tracebed").iterdir()
    assert str(written) in line
    assert "Traceback" in written.read_text()
    assert "w.parquet" in written.read_text()


@pytest.mark.usefixtures("broken")
def test_the_traceback_of_a_crash_is_shown_on_demand(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACEBED_TRACEBACK", "1")
    status, _, err = call("describe", "w.parquet")
    assert status == ExitCode.INTERNAL
    assert err.startswith("Traceback")
    assert "LookupError" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("broken")
def test_a_crash_is_reported_if_no_file_can_be_written(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "state"))
    status, _, err = call("describe", "w.parquet")
    assert status == ExitCode.INTERNAL
    assert "TRACEBED_TRACEBACK=1" in err


WORKLOAD = "job_id,submit_time,run_time,time_limit,nodes\na,0,100,200,2\nb,1,50,60,1\nc,2,10,10,3\n"


@pytest.fixture
def workload(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text(WORKLOAD)


def test_the_version(call: Call) -> None:
    for option in ("-V", "--version"):
        assert call(option)[1].startswith("tracebed, version ")


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["simulte"], "simulate"),
        (["generate", "lubin99"], "lublin99"),
        (["simulate", "w.csv", "--polcy", "easy"], "--policy"),
        (["simulate", "w.csv", "--policy", "esay", "--nodes", "4", "-o", "x"], "easy"),
        (["convert", "w.csv", "--from", "sfw", "-o", "x.csv"], "swf"),
        (["convert", "w.csv", "--to", "batsym", "-o", "x"], "batsim"),
    ],
)
@pytest.mark.usefixtures("workload")
def test_the_nearest_name_is_suggested(call: Call, words: list[str], near: str) -> None:
    status, _, err = call(*words)
    assert status == ExitCode.USAGE
    assert near in re.split("did you mean|possible options", err.lower())[1].split("?")[0]


@pytest.mark.usefixtures("workload")
@pytest.mark.parametrize("before", [True, False])
def test_quiet_prints_results_and_errors_only(call: Call, before: bool) -> None:
    def simulate(*option: str, workload: str = "w.csv") -> tuple[int, str, str]:
        words = ["simulate", workload, "--policy", "easy", "--nodes", "2", "-o", "sim", "--replace"]
        return call(*option, *words) if before else call(*words, *option)

    assert "rejected" in simulate()[2]
    status, out, err = simulate("-q")
    assert status == ExitCode.OK
    assert "makespan" in out
    assert err == ""
    assert "absent.csv" in simulate("--quiet", workload="absent.csv")[2]


@pytest.mark.usefixtures("workload")
def test_verbose_prints_durations(call: Call) -> None:
    assert "describing w.csv: 0." not in call("describe", "w.csv")[2]
    assert "describing w.csv: 0." in call("describe", "w.csv", "-v")[2]
    assert "describing w.csv: 0." in call("-v", "describe", "w.csv")[2]
    status, _, err = call("-q", "describe", "w.csv", "-v")
    assert status == ExitCode.USAGE
    assert "both -q and -v" in err


@pytest.mark.usefixtures("workload")
def test_the_log_file_has_messages_that_are_not_shown(call: Call, tmp_path: Path) -> None:
    call("-q", "--log-file", "log", "simulate", "w.csv", "--policy", "easy", "--nodes", "2", "-o", "sim")
    call("describe", "absent.csv", "--log-file", "log")
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line for line in lines if "WARNING" in line and "rejected" in line]
    assert "exit status 0" in "\n".join(lines)
    assert [line for line in lines if "ERROR" in line and "absent.csv" in line]
    assert lines[-1].endswith("exit status 2")
    status, _, err = call("--log-file", "no/log", "describe", "w.csv")
    assert status == ExitCode.USAGE
    assert "no/log: the log file cannot be written" in err


@pytest.mark.usefixtures("workload")
def test_variables_and_files_set_options_and_the_command_line_wins(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def policy_of(*words: str) -> str:
        status, out, err = call("simulate", "w.csv", "--nodes", "4", "-o", "sim", "--replace", "--json", *words)
        assert status == ExitCode.OK, err
        return str(json.loads(out)["policy"])

    (tmp_path / "config" / "tracebed").mkdir(parents=True)
    (tmp_path / "config" / "tracebed" / "config.toml").write_text('[simulate]\npolicy = "fcfs"\nnodes = 9\n')
    assert policy_of() == "fcfs"
    (tmp_path / "tracebed.toml").write_text('quiet = true\n[simulate]\npolicy = "firstfit"\n')
    assert policy_of() == "firstfit"
    monkeypatch.setenv("TRACEBED_SIMULATE_POLICY", "conservative")
    assert policy_of() == "conservative"
    assert policy_of("--policy", "easy") == "easy"
    monkeypatch.delenv("TRACEBED_SIMULATE_POLICY")
    (tmp_path / "own.toml").write_text('[simulate]\npolicy = "pref"\npolicy-option = ["backfill=easy"]\n')
    monkeypatch.setenv("TRACEBED_CONFIG", "own.toml")
    assert policy_of() == "pref"


def test_a_subcommand_has_a_section_of_its_own(call: Call, tmp_path: Path) -> None:
    (tmp_path / "tracebed.toml").write_text("[generate.cirne]\njobs = 7\nnodes = 16\nkind = 'malleable'\n")
    status, out, err = call("generate", "cirne", "-o", "w.csv", "--json")
    assert status == ExitCode.OK, err
    assert (json.loads(out)["jobs"], json.loads(out)["nodes"]) == (7, 16)
    assert json.loads(out)["malleable_jobs"] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\na = !", "tracebed.toml:2: is not TOML: Invalid value"),
        ("verbos = true", "tracebed.toml, verbos: unknown option 'verbos' (did you mean verbose?"),
        ("verbose = 3", "tracebed.toml, verbose: 3 is not true or false"),
        ("[describ]\nplot = 'x.png'", "unknown command 'describ' (did you mean describe?"),
        ("[describe]\nplt = 'x.png'", "tracebed.toml, [describe], plt: unknown option 'plt' (did you mean plot?"),
        ("[describe]\nplot = ['x.png']", "tracebed.toml, [describe], plot: is a list"),
        ("[describe.x]\nplot = 3", "unknown command 'x'"),
        ("[describe]\nplot = ''", "tracebed.toml, [describe], plot: the name is empty"),
    ],
)
@pytest.mark.usefixtures("workload")
def test_a_wrong_configuration_is_one_line(call: Call, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tracebed.toml").write_text(text)
    status, _, err = call("describe", "w.csv")
    assert status == ExitCode.USAGE
    assert message in err
    assert len(err.splitlines()) == 1
    assert call("--config", "absent.toml", "describe", "w.csv")[2].startswith(
        "tracebed: absent.toml: cannot read the configuration"
    )


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tracebed", "si"], {"simulate"}),
        (["tracebed", "generate", "lub"], {"lublin99"}),
        (["tracebed", "simulate", "w.csv", "--poli"], {"--policy", "--policy-option"}),
        (["tracebed", "simulate", "w.csv", "--policy", "e"], {"easy"}),
        (["tracebed", "convert", "w.csv", "--to", "bat"], {"batsim"}),
    ],
)
def test_the_shell_completes_names(words: list[str], offered: set[str], tmp_path: Path) -> None:
    variables = {
        "_TRACEBED_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "import sys; sys.argv = ['tracebed']; from tracebed.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered, done.stderr


# Options in messages: each belongs to the command that the message names, or to each command that may print it.

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
    "validation/tracebed/operators/prospective_job.py": ("forecast",),
    "validation/tracebed/operators/judgment.py": ("forecast",),
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
