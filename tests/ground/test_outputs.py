"""No command destroys what lies under the name of its output: all commands x all kinds of existing outputs."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
from click.testing import CliRunner, Result

import tracebed.api as tb
from tests.runs import make_run
from tracebed.cli import tracebed
from tracebed.cli.options import OutputPath
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.folder import WorkingFolder

SWF = "; Version: 2.2\n; MaxNodes: 4\n; MaxProcs: 4\n1 0 0 100 4 -1 -1 4 200 -1 1 1 1 1 1 -1 -1 -1\n"
PRECIOUS = "do not lose this\n"


@dataclass(frozen=True)
class Case:
    """A command with an output."""

    words: str
    """The command; OUT is its output."""
    name: str
    """Name of the output."""
    output: str = "file"
    """`file`, `folder`, `run` (real), `prediction` or `store`."""
    source: str = "w.parquet"
    """An input of the command, or another file if it has none."""
    renewed: bool = False
    """Whether an earlier output is replaced without --replace."""
    light: bool = True
    """Whether the command takes less than some seconds here; the others are called only where they are refused."""

    def command(self, output: str, *more: str) -> list[str]:
        """Return the arguments of the command."""
        return [*(output if word == "OUT" else word for word in self.words.split()), *more]


COMPARE = "compare --real real --predicted p"
# command and option -> a call
CASES = {
    "tracebed --log-file": Case("--log-file OUT metrics p", "log.txt", renewed=True),
    "demo -o": Case("demo --on emulated -o OUT", "demo", "store", light=False),
    "generate -o": Case("generate cirne --nodes 4 --jobs 5 -o OUT", "out.parquet", source="log.swf"),
    "convert -o": Case("convert w.parquet -o OUT", "out.csv"),
    "convert -o, SWF": Case("convert w.parquet -o OUT", "out.swf.gz"),
    "convert -o, script": Case("convert w.parquet -o OUT", "out.sh"),
    "convert -o, Batsim": Case("convert w.parquet --to batsim -o OUT", "out.json"),
    "convert -o, run": Case("convert logged.csv --to run -o OUT", "out", "run", source="logged.csv"),
    "clean -o": Case("clean log.swf --recipe least.yaml -o OUT", "out.csv", source="log.swf"),
    "clean --explain": Case(
        "clean log.swf --recipe least.yaml -o fresh.csv --explain OUT", "out.csv", source="log.swf"
    ),
    "describe --plot": Case("describe w.parquet --plot OUT", "out.svg", renewed=True),
    "scale -o": Case("scale w.parquet --nodes 2 -o OUT", "out.parquet"),
    "malleable -o": Case("malleable w.parquet --share 1 -o OUT", "out.parquet"),
    "nodes check -o": Case("nodes check emulated-4 --seconds 0 -o OUT", "out.yaml", light=False),
    "nodes facts -o": Case("nodes facts emulated-4 -o OUT", "out.yaml", light=False),
    "nodes calibrate -o": Case("nodes calibrate --inventory emulated-4 -o OUT", "out.yaml", light=False),
    "whatif -o": Case(
        "whatif starts.csv slurm.conf --perturb 2 -o OUT", "out", "folder", source="starts.csv", renewed=True
    ),
    "simulate -o": Case("simulate w.parquet --policy easy --nodes 4 -o OUT", "out", "prediction"),
    "experiment -o": Case("experiment study.yaml --workers 1 -o OUT", "out", "store", light=False),
    "experiment --report": Case(
        "experiment study.yaml --workers 1 -o new --report OUT", "out", "folder", renewed=True, light=False
    ),
    "validate --report": Case("validate suite.yaml -o new --report OUT", "out", "folder", renewed=True, light=False),
    "experiment -o, -x": Case("experiment study.yaml -x interval_s=10 --workers 1 -o OUT", "out", "store", light=False),
    "experiment -o, paper": Case("experiment drom-in-situ -o OUT", "out", "store", light=False),
    "experiment -o, replayed": Case("experiment suite.yaml -o OUT", "out", "store", light=False),
    "replay -o": Case("replay w.parquet --policy easy --inventory emulated-4 --speed 1e6 -o OUT", "out", "run"),
    "replay --metrics": Case(
        "replay w.parquet --policy easy --inventory emulated-4 --speed 1e6 --metrics OUT -o new",
        "out.prom",
        renewed=True,
        light=False,
    ),
    "watch --metrics": Case("watch real --interval 0 --metrics OUT", "out.prom", renewed=True, light=False),
    "metrics --report": Case("metrics p --report OUT", "out.html", source="p/run.json", renewed=True, light=False),
    "metrics --report, tex": Case("metrics p --report OUT", "out.tex", source="p/run.json", renewed=True),
    "metrics --noise": Case("metrics r/1 r/2 r/3 r/4 r/5 --noise OUT", "out.yaml", source="r/1/run.json"),
    "replay -o, recover": Case("replay --recover p -o OUT", "out", "run", light=False),
    "import -o": Case(
        "import table.csv --as predicted --workload w.parquet -o OUT", "out", "prediction", source="table.csv"
    ),
    "import -o, real": Case("import table.csv --as real --nodes 4 -o OUT", "out", "run", source="table.csv"),
    "validate -o, recorded": Case("validate --recorded emulated -o OUT", "out", "store", light=False),
    "compare --report": Case(f"{COMPARE} --report OUT", "out.html", source="p/run.json", renewed=True, light=False),
    "compare --report, md": Case(f"{COMPARE} --report OUT", "out.md", source="p/run.json", renewed=True),
    "compare --report, tex": Case(f"{COMPARE} --report OUT", "out.tex", source="p/run.json", renewed=True),
    "compare --report, xml": Case(f"{COMPARE} --report OUT", "out.xml", source="p/run.json", renewed=True),
    "compare --code-quality": Case(f"{COMPARE} --code-quality OUT", "out.json", source="p/run.json", renewed=True),
    "validate -o": Case("validate suite.yaml -o OUT", "out", "store", light=False),
    "validate --code-quality": Case(
        "validate suite.yaml -o new --code-quality OUT", "out.json", renewed=True, light=False
    ),
    "explain --report": Case("explain w.parquet --real real --report OUT", "out.html", renewed=True, light=False),
    **{
        f"export -o, {form}": Case(f"export p --to {form} -o OUT", f"out.{form}", source="p/run.json")
        for form in ("csv", "evalys", "swf", "perfetto", "workload")
    },
}
ELSEWHERE = {"simulate --keep", "forecast -o", "forecast --report"}
"""Outputs that need a program or the state of a cluster: test_simulate_elastisim.py, test_forecast.py,
test_forecast_page.py."""
ADDED = {"collect"}
"""Folders of a timer, to which each command adds a state."""
INPUTS = {
    *("baseline", "before", "calibration", "commands", "config", "file", "files", "folder", "recover", "health"),
    *("judge", "inventory", "log", "machine", "noise", "predicted", "raw", "real", "run", "runs"),
    *(
        "replacement",
        "source",
        "sources",
        "state",
        "suite",
        "tolerances",
        "work_rate",
        "workload",
        "workloads",
    ),
}
"""Names of the parameters with a path that a command reads."""
KINDS = ("same", "workload", "input", "real run", "prediction", "empty folder", "folder", "FIFO", "live replay")
LINKED = ("same", "workload", "real run", "folder")


def paths_of(command: click.Command, place: str = "") -> Iterator[tuple[str, click.Parameter]]:
    """Yield the parameters with a path of a command and its subcommands, with the name of the command."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from paths_of(found, f"{place} {name}".strip())
    yield from ((place or "tracebed", option) for option in command.params if isinstance(option.type, click.Path))


def test_no_output_of_a_command_is_left_out() -> None:
    found, others = {"tracebed --log-file"}, set()
    for place, option in paths_of(tracebed):
        place = "generate" if place.startswith("generate ") else place
        if isinstance(option.type, OutputPath):
            if "--log-file" not in option.opts:
                found.add(f"{place} {option.opts[0]}")
        else:
            others.add(option.name)
    assert found - ELSEWHERE == {name.partition(",")[0] for name in CASES}
    assert others <= INPUTS | ADDED, "a parameter with a path is an OutputPath, or an input of this list"


@cache
def table() -> Workload:
    jobs = {"job_id": ["1", "2", "3"], "submit_time": [0.0, 5.0, 9.0], "run_time": [60.0, 90.0, 30.0]}
    jobs |= {"nodes": [2, 1, 4], "time_limit": [100.0, 100.0, 100.0]}
    return Workload(pd.DataFrame(jobs), Provenance(system=System(4, 1)))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the inputs of all commands."""
    folder = tmp_path_factory.mktemp("template")
    tb.write(table(), folder / "w.parquet")
    (folder / "log.swf").write_text(SWF)
    (folder / "least.yaml").write_text("steps: [merge_split, unique_ids]\n")
    (folder / "logged.csv").write_text(
        "job_id,submit_time,run_time,nodes,logged_start,logged_end\n1,0,60,1,5,65\n2,3,60,1,8,68\n"
    )
    (folder / "starts.csv").write_text(
        "job_id,submit_time,run_time,nodes,logged_start,logged_end\n1,0,60,1,5,65\n2,70,60,1,75,135\n"
    )
    (folder / "slurm.conf").write_text("NodeName=n[1-4] CPUs=1\nPartitionName=all Nodes=ALL Default=YES\n")
    (folder / "table.csv").write_text("id,submit,start,end,nodes\n1,0,0,60,2\n2,5,60,150,1\n3,9,150,180,4\n")
    (folder / "study.yaml").write_text(
        "workloads: {small: {model: cirne, options: {jobs: 5, nodes: 16}}}\npolicies: [easy]\n"
    )
    (folder / "suite.yaml").write_text(
        "workloads: {w: w.parquet}\npolicies: [easy]\ntestbed: {inventory: emulated-4, speed: 1e6}\n"
        "repetitions: 1\nsimulators: {tracebed: {}}\n"
    )
    predicted = tb.simulate(table(), "easy", 4)
    predicted.save(folder / "p")
    jobs = [(0.0, 0.0, 60.0, 2), (5.0, 5.0, 95.0, 1), (9.0, 96.0, 126.0, 4)]
    workload = predicted.info.workload
    for number in range(1, 6):
        run = make_run([(s, b, e + number / 10, n) for s, b, e, n in jobs], policy="easy", speed=1e6)
        run.info.workload = workload
        run.save(folder / "r" / str(number))
    shutil.copytree(folder / "r" / "1", folder / "real")
    shutil.copytree(folder / "real", folder / "other real")
    return folder


@pytest.fixture
def here(
    template: Path, tmp_path: Path, without_pictures: None, unrendered: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Go to a folder with the inputs of all commands."""
    shutil.copytree(template, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def run(*words: str) -> Result:
    return CliRunner().invoke(tracebed, list(words))


def content() -> dict[str, bytes | str]:
    """Return the files here, and the targets of links."""
    return {
        str(path): path.readlink().as_posix() if path.is_symlink() else path.read_bytes()
        for path in sorted(Path().rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def applies(case: Case, kind: str) -> bool:
    """Return whether the test can make an existing output of this kind for the command."""
    if kind == "same":  # other commands are too long, or continue in their own output
        return case.light and case.output != "store"
    return kind != "live replay" or case.output in ("run", "prediction")


def pairs(kinds: Sequence[str]) -> list[Any]:
    """Return the commands with the kinds of existing outputs that apply to them, as parameters of a test."""
    found = [(name, case, kind) for name, case in CASES.items() for kind in kinds if applies(case, kind)]
    return [pytest.param(case, kind, id=f"{name}-{kind}") for name, case, kind in found]


def lay(kind: str, case: Case, place: str) -> None:
    """Create an existing output."""
    path = Path(place)
    if kind == "same":
        result = run(*case.command(place))
        assert path.exists(), result.output
    elif kind == "workload":
        tb.write(table(), "other.parquet")
        Path("other.parquet").rename(place)
    elif kind == "real run":
        shutil.copytree("other real", place)
    elif kind == "prediction":
        shutil.copytree("p", place)
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "folder":
        path.mkdir()
        (path / "thesis.txt").write_text(PRECIOUS)
    elif kind == "FIFO":
        os.mkfifo(place)


def may_write(kind: str, case: Case, replace: bool) -> bool:
    """Return whether the rule allows the output."""
    if kind == "same":
        return case.renewed or replace
    if kind == "workload":
        return (
            replace
            and (
                case.words.split()[0] in ("generate", "convert", "clean", "scale", "malleable")
                or "--to workload" in case.words
            )
            and (case.output == "file" and "--explain" not in case.words and not case.name.endswith(".gz"))
        )
    if kind == "real run":
        return replace and case.output == "run"
    if kind == "prediction":
        return replace and case.output in ("run", "prediction")
    if kind == "empty folder":
        return case.output != "file"
    return kind == "FIFO" and case.output == "file"


def check(case: Case, kind: str, place: str, kept: Path | None = None) -> None:
    """Call the command without and with --replace, and check that nothing is lost.

    Args:
        case: the command.
        kind: what lies under the name of the output.
        place: the name of the output.
        kept: where its content is, if the name is a link.
    """
    never = case.renewed or case.output == "store"
    for more in ([], *([] if never else [["--replace"]])):
        allowed = may_write(kind, case, bool(more))
        if allowed and not case.light:
            continue
        before = content()
        result = run(*case.command(place, *more))
        after = content()
        if allowed:
            assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
            own = str(kept or place)
            lost = {name for name in before if before[name] != after.get(name)} - {own, "fresh.csv"}
            assert {name for name in lost if not name.startswith(f"{own}/")} == set()
        else:
            assert isinstance(result.exception, InputError), result.output
            assert "name" in str(result.exception) or "choose" in str(result.exception)
            assert after == before


@pytest.mark.parametrize(("case", "kind"), pairs(KINDS))
def test_no_command_destroys_an_existing_output(case: Case, kind: str, here: Path) -> None:
    if kind == "live replay":
        working = WorkingFolder(Path(case.name))
        try:
            result = run(*case.command(case.name))
        finally:
            working.remove()
        assert "another replay is writing to it" in str(result.exception)
        assert not Path(case.name).exists()
        return
    if kind == "input":
        check(case, kind, case.source)
        return
    if kind == "FIFO" and case.output == "file" and case.light:
        os.mkfifo(case.name)
        pipe = os.open(case.name, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 2**20)  # larger than each output, so that no writer waits
        before = content()
        run(*case.command(case.name))
        assert os.read(pipe, 100)
        os.close(pipe)
        assert Path(case.name).is_fifo()
        assert {name: data for name, data in content().items() if name in before} == before
        return
    lay(kind, case, case.name)
    check(case, kind, case.name)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "kind"), pairs(LINKED))
def test_no_command_destroys_the_target_of_a_link(case: Case, kind: str, here: Path) -> None:
    Path("elsewhere").mkdir()
    kept = Path("elsewhere") / case.name
    lay(kind, case, str(kept))
    Path(case.name).symlink_to(kept)
    check(case, kind, case.name, kept)
    assert Path(case.name).is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.light], ids=[n for n, c in CASES.items() if c.light]
)
def test_a_dangling_link_is_written_through(case: Case, here: Path) -> None:
    Path("elsewhere").mkdir()
    kept = Path("elsewhere") / case.name
    Path(case.name).symlink_to(kept)
    before = content()
    run(*case.command(case.name))
    assert kept.exists()
    assert Path(case.name).is_symlink()
    assert {name: data for name, data in content().items() if name in before} == before


LIGHT_FILES = {name: case for name, case in CASES.items() if case.light and case.output == "file"}


@pytest.mark.parametrize("case", LIGHT_FILES.values(), ids=LIGHT_FILES)
def test_no_command_replaces_a_read_only_file(case: Case, here: Path) -> None:
    lay("same", case, case.name)
    Path(case.name).chmod(0o444)
    before = content()
    result = run(*case.command(case.name, *([] if case.renewed else ["--replace"])))
    assert "is read-only" in str(result.exception)
    assert content() == before
