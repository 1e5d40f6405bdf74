"""Commands of pages: how tests find, check and run them, with small files in place of those that a page assumes."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import pandas as pd
from click.testing import CliRunner

import tracebed.api as tb
from tests import logs, packages
from tests.oracles import slurm_forecasts
from tests.oracles.validations import make_validation
from tests.runs import campaign
from tracebed.cli import tracebed
from tracebed.ground.errors import ExitCode
from tracebed.operators.judgment import collect
from tracebed.slurm.state import COMMANDS
from tracebed.validation.verdict.baseline import Baseline

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n+)?"
    r"(?:^```(?P<language>[\w{}-]*)\n(?P<fenced>.*?)^```$|(?P<indented>(?:^    [^\n]*\n|^\n(?=    ))+))",
    re.MULTILINE | re.DOTALL,
)
FASTEST = 20_000.0
"""At least this many trace seconds a wall second in replays."""
VERDICTS = {ExitCode.OK, ExitCode.INACCURATE, ExitCode.INCONCLUSIVE, ExitCode.UNHEALTHY}


@dataclass(frozen=True)
class Block:
    """A block of commands in a page."""

    commands: list[list[str]]
    reason: str | None
    """Why it is not run."""


def words(line: str) -> list[str]:
    """Return the words of the first command of a line, without comments, pipes, and commands after `&&`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found = []
    for word in lexer:
        if set(word) <= set("|&;<>()"):
            break
        found.append(word)
    return found


def blocks(text: str) -> Iterator[Block]:
    for match in BLOCK.finditer(text):
        if match["language"] not in {None, "", "bash", "sh", "console", "text"}:
            continue
        lines = re.sub(r"\\\n\s*", "", match["fenced"] or match["indented"]).splitlines()
        commands = [words(line.strip()) for line in lines if line.strip().startswith("tracebed ")]
        if commands:
            yield Block(commands, match["reason"])


def inline(text: str) -> Iterator[list[str]]:
    """Return the commands `tracebed COMMAND ...` in running text, except abbreviated ones."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for command in re.findall(r"`(tracebed [^`]+)`", prose):
        if not re.search(r"\.\.\.|\b[A-Z]{3,}\b", command):
            yield words(command.replace("\n", " "))


def check(command: list[str]) -> None:
    """Raise click's error if a command, an option or a choice does not exist."""
    found: click.Command = tracebed
    arguments, parent = command[1:], None
    while True:
        context = click.Context(found, info_name=found.name, parent=parent)
        values, rest, _ = found.make_parser(context).parse_args(list(arguments))
        for parameter in found.params:
            value = values.get(parameter.name or "")
            if isinstance(parameter.type, click.Choice) and isinstance(value, str):
                parameter.type.convert(value, parameter, context)
        if not isinstance(found, click.Group) or not rest:
            return
        following = found.get_command(context, rest[0])
        if following is None:
            raise click.UsageError(f"no command {rest[0]}")
        found, arguments, parent = following, rest[1:], context


def run(command: list[str], expected: set[ExitCode]) -> None:
    result = CliRunner().invoke(tracebed, command[1:])
    shown = f"{shlex.join(command)}\n{result.output}"
    if result.exception and not isinstance(result.exception, SystemExit):
        raise AssertionError(shown) from result.exception
    assert result.exit_code in expected, shown


def make(folder: Path, *command: str) -> None:
    run(["tracebed", *command], {ExitCode.OK})


def cori(folder: Path) -> None:
    folder.mkdir()
    logs.write(folder / "2022-11-07.csv", logs.CORI, logs.CORI_ROWS)


def sacct(folder: Path) -> None:
    """Write two days of `sacct -P`, one file each, with rows of job steps."""
    folder.mkdir()
    header = "JobID|User|Partition|Submit|Start|End|Elapsed|Timelimit|State|NNodes|NCPUS"
    for day in (1, 2):
        rows = [header]
        for job in range(1, 11):
            times = [f"2024-01-{day:02}T{hour:02}:00:00" for hour in (job, job, job + 1)]
            fields = "|".join(["u1", "batch", *times, "01:00:00", "02:00:00", "COMPLETED", "2", "96"])
            rows += [f"{100 * day + job}|{fields}", f"{100 * day + job}.batch|{fields}"]
        (folder / f"2024-01-{day:02}.txt").write_text("\n".join(rows) + "\n")


def accounting(folder: Path) -> None:
    """Write a month of `sacct -P` of a cluster of 64 nodes with 48 cores, on which jobs waited."""
    folder.mkdir()
    run = tb.simulate(tb.generate("cirne", jobs=300, nodes=64, cores_per_node=48, seed=4), "easy")
    rows = ["JobID|User|Partition|Submit|Start|End|Timelimit|State|NNodes|NCPUS"]
    for job in run.jobs.to_dict("records"):
        times = [f"{pd.Timestamp('2024-01-01') + pd.Timedelta(seconds=round(job[at])):%Y-%m-%dT%H:%M:%S}"
                 for at in ("submit", "start", "end")]  # fmt: skip
        hours, seconds = divmod(round(job["time_limit"]), 3600)
        limit = f"{hours // 24}-{hours % 24:02}:{seconds // 60:02}:{seconds % 60:02}"
        size = [str(job["nodes"]), str(48 * job["nodes"])]
        rows.append("|".join([f"{len(rows)}", "u1", "batch", *times, limit, "COMPLETED", *size]))
    (folder / "2024-01.txt").write_text("\n".join(rows) + "\n")


def spare(path: Path) -> None:
    """Write an inventory of four emulated nodes in place of the spare nodes of a cluster."""
    path.write_text("groups:\n  spare: {nodes: 'node[61-64]', cores: 48, emulated: true}\n")


def policies(path: Path) -> None:
    """Write the folder of an experiment with two policies, without the plan of its replays."""
    campaign(path)


def drawn(path: Path) -> None:
    make(path.parent, "generate", "cirne", "--nodes", "64", "--jobs", "30", "--seed", "1", "-o", path.name)


def of_cori(path: Path) -> None:
    provide("cori-knl", path.parent)
    make(path.parent, "convert", "cori-knl", "-o", path.name)


def of_ricc(path: Path) -> None:
    provide("RICC-2010-2.swf.gz", path.parent)
    make(path.parent, "convert", "RICC-2010-2.swf.gz", "-o", path.name)


def runs(path: Path) -> None:
    """Write a prediction as `runs/sim`, and the run of a log as `runs/real`."""
    provide("ricc.parquet", path.parent)
    make(path.parent, "convert", "ricc.parquet", "--to", "run", "-o", "runs/real")
    make(path.parent, "simulate", "ricc.parquet", "--policy", "easy", "-o", "runs/sim")


def repeated(path: Path) -> None:
    """Write the experiment of the page on repeated replays, and its workload."""
    provide("small.parquet", path.parent)
    page = (ROOT / "docs/how-to/repeat.md").read_text(encoding="utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    path.write_text(text.replace("speed: 100000", "speed: 1000000"))


def strangers(path: Path) -> None:
    """Write tables of jobs of a stranger: real.csv, log.csv and sim.csv."""
    late = 0 if path.name == "sim.csv" else 5
    rows = [f"{job},{60 * job},{60 * job + late},{60 * job + 90 + late},{1 + job % 2}" for job in range(30)]
    header = "id,submit,From,Until,nodes" if path.name == "log.csv" else "id,submit,start,end,nodes"
    path.write_text("\n".join([header, *rows]) + "\n")


def accuracy(path: Path) -> None:
    """Write the experiment of the page on validation, and its workloads."""
    for name in ("cirne.parquet", "lublin.parquet"):
        if not (path.parent / name).exists():
            provide("small.parquet", path.parent)
            make(path.parent, "scale", "small.parquet", "--nodes", "4", "-o", name)
    page = (ROOT / "docs/how-to/validate.md").read_text(encoding="utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    path.write_text(text.replace("speed: 20000", "speed: 1000000").replace("repetitions: 5", "repetitions: 2"))


def of_page(page: str, folder: str = "how-to") -> Callable[[Path], None]:
    """Return a function that writes the first YAML file of a page."""

    def write(path: Path) -> None:
        text = (ROOT / f"docs/{folder}/{page}.md").read_text(encoding="utf-8")
        path.write_text(text.partition("```yaml\n")[2].partition("```")[0])

    return write


def buffalo(path: Path) -> None:
    """Write a table of jobs of UB's Slurm simulator, or two runs of these jobs in one table."""
    rows = ["dt;job_id;wall_time;user;wall_limit;n_tasks;ntasks_per_node;account;partition;qos;constraint;mem;gres"]
    rows += [f"{60 * job};{job};90;user1;5;{1 + job % 12};12;account1;normal;normal;;;" for job in range(1, 31)]
    if path.name == "two-runs.csv":
        rows = ["run_id,job_id,submit_job,launch_job,job_epilog_complete,wait_time,wall_time"]
        for run in (1, 2):
            rows += [f"{run},{job},{60 * job},{60 * job + run},{60 * job + 90 + run},{run},90" for job in range(1, 31)]
    path.write_text("\n".join(rows) + "\n")


def version(path: Path) -> None:
    """Write a version of a baseline, whose predictions become worse and better again."""
    factor = {"v1": 1.004, "v2": 1.01, "v3": 1.02, "v4": 1.06}.get(path.stem, 1.012)
    found = make_validation({"w1-fcfs": factor, "w2-fcfs": factor})
    Baseline.of([found.to_json()]).save(path)


def fitted(path: Path) -> None:
    """Write the experiment of the page on calibration, with a simulator of the tests, and with the later key."""
    page = (ROOT / "docs/how-to/calibrate-your-simulator.md").read_text(encoding="utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    toy = f"python3 -S {ROOT / 'tests/servers/toy_simulator.py'}"
    path.write_text(f"{text.replace('my-simulator', toy)}    calibration: fit/calibrated/mine.yaml\n")


def slurm_conf(path: Path) -> None:
    """Write the slurm.conf of a cluster whose jobs share nodes, or a changed one."""
    path.write_text(
        f"SchedulerParameters=bf_interval={60 if path.suffix == '.new' else 30}\n"
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nPriorityType=priority/multifactor\n"
        "PriorityWeightFairshare=1000\nAccountingStorageEnforce=limits\nNodeName=n[1-64] CPUs=48\n"
        "PartitionName=batch Nodes=ALL Default=YES\n"
    )


def dump_cfg(path: Path) -> None:
    """Write the accounts of a cluster, as sacctmgr dumps them."""
    path.write_text("Cluster - 'c':Fairshare=1\nParent - 'root'\nAccount - 'phys':Fairshare=1\nParent - 'phys'\n"
                    "User - 'u1':DefaultAccount='phys':Fairshare=1\n")  # fmt: skip


def qos_txt(path: Path) -> None:
    """Write the QOS of a cluster."""
    path.write_text("Name|Priority|MaxJobsPU\nnormal|0|\n")


def cluster_state(path: Path) -> None:
    """Write the first recorded state of a Slurm cluster."""
    recording = slurm_forecasts.recorded(sorted(slurm_forecasts.FOLDER.glob("*.json.xz"))[0])
    path.mkdir()
    for part in COMMANDS.keys() & recording["states"][0].keys():
        (path / f"{part}.txt").write_text(recording["states"][0][part])


def collected_states(path: Path) -> None:
    """Write the first recorded states of a Slurm cluster, as `forecast --collect` does."""
    for state in slurm_forecasts.recorded(sorted(slurm_forecasts.FOLDER.glob("*.json.xz"))[0])["states"][:6]:
        collect(path, {part: state[part] for part in COMMANDS.keys() & state.keys()})


def accounting_of_states(path: Path) -> None:
    """Write the accounting of the cluster of `collected_states`."""
    path.write_text(slurm_forecasts.recorded(sorted(slurm_forecasts.FOLDER.glob("*.json.xz"))[0])["sacct"])


def helios(path: Path) -> None:
    """Write a table of jobs of Helios."""
    header = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
    times = [f"2020-06-09 18:{minute:02}:00" for minute in (41, 42, 52)]
    rows = [f"{job},u1,vc{job % 2},8,32,1,COMPLETED,{','.join(times)},600,60" for job in range(20)]
    path.write_text("\n".join([header, *rows]) + "\n")


def perlmutter(path: Path) -> None:
    """Write a log of two machines of NERSC."""
    path.mkdir()
    header = "Job,Host Name,Partition,QOS,Submit,Start,End,Elapsed Secs,CPUs,Nodes Allocated"
    times = [f"2022-11-07 08:{minute:02}:00" for minute in (41, 42, 52)]
    hosts = [("perlmutter gpu", "gpu_ss11", 128), ("perlmutter cpu", "regular_milan_ss11", 256)]
    rows = [f"{job},{host},{part},q,{','.join(times)},600,{cpus},1" for job, (host, part, cpus) in enumerate(hosts)]
    (path / "2022-11-07.csv").write_text("\n".join([header, *rows]) + "\n")


def venus(path: Path) -> None:
    """Write a machine with GPUs."""
    classes = "[{count: 134, cores: 128, gres: {gpu: 8}}]"
    parts = "[{name: vc0, nodes: ['n[001-009]']}, {name: vc1}, {name: gpu_ss11}]"
    path.write_text(f"classes: {classes}\npartitions: {parts}\n")


def reservations(path: Path) -> None:
    """Write an advance reservation, as scontrol shows it."""
    times = "StartTime=1790003600 EndTime=1790007200"
    path.write_text(f"ReservationName=maintenance {times} Duration=01:00:00\n   Nodes=n[1-64] Flags=MAINT\n")


def outages(path: Path) -> None:
    """Write the table of outages of the page on machines."""
    page = (ROOT / "docs/reference/machines.md").read_text(encoding="utf-8")
    table = re.search(r"^node,from,.*?(?=^```$)", page, re.MULTILINE | re.DOTALL)
    assert table is not None
    path.write_text(table[0])


def machine(path: Path) -> None:
    path.write_text(packages.files_of(ROOT / "docs/reference/machines.md")[path.name])


def named_on(page: str) -> Callable[[Path], None]:
    """Return a function that writes the file of its name on a page."""

    def write(path: Path) -> None:
        path.write_text(packages.files_of(ROOT / f"docs/{page}.md")[path.name])

    return write


FIXTURES: dict[str, Callable[[Path], None]] = {
    "RICC-2010-2.swf.gz": lambda path: logs.ricc_log(path, 200),
    "cori-knl": cori,
    "exports": sacct,
    "accounting": accounting,
    "spare.yaml": spare,
    "grid.yaml": named_on("how-to/grid"),
    "gain": policies,
    "emulated-16.yaml": named_on("how-to/grid"),
    "real.yaml": repeated,
    "accuracy.yaml": accuracy,
    "busy.yaml": of_page("perturbations"),
    "sweep.yaml": of_page("pictures"),
    **{f"v{number}.yaml": version for number in range(1, 6)},
    "runs": runs,
    "bestfit.py": named_on("how-to/write-a-policy"),
    "admit.py": named_on("how-to/write-a-policy"),
    "asleep.yaml": named_on("reference/power"),
    "nights.yaml": named_on("reference/power"),
    "inertial.yaml": named_on("reference/power"),
    "real.csv": strangers,
    "log.csv": strangers,
    "sim.csv": strangers,
    "mine.yaml": of_page("validate-your-simulator"),
    "case.yaml": of_page("real-log"),
    "rehearsal.yaml": of_page("rehearse"),
    "sleepy.yaml": named_on("testbeds/sleep"),
    "nightly.yaml": named_on("testbeds/sleep"),
    "power.yaml": of_page("slurm", folder="reference/policies"),
    "jobs.csv": buffalo,
    "two-runs.csv": buffalo,
    "fit.yaml": fitted,
    "cluster_log.csv": helios,
    "venus.yaml": venus,
    "log": perlmutter,
    "perlmutter.yaml": venus,
    "state": cluster_state,
    "states": collected_states,
    "history.txt": accounting_of_states,
    "resv.txt": reservations,
    "outages.csv": outages,
    "twenty.csv": lambda path: path.write_text((ROOT / "docs/reference/twenty.csv").read_text(encoding="utf-8")),
    **dict.fromkeys(["machine.yaml", "sleeping.yaml", "windows.yaml", "compared.yaml"], machine),
    "dump.cfg": dump_cfg,
    "qos.txt": qos_txt,
    "slurm.conf": slurm_conf,
    "slurm.conf.new": slurm_conf,
    "knl.parquet": of_cori,
    "raw.parquet": of_cori,
    "ricc.parquet": of_ricc,
    **dict.fromkeys(["w.parquet", "log.parquet", "small.parquet", "mixed.parquet"], drawn),
}


Fixtures = Mapping[str, Callable[[Path], None]]


def provide(word: str, folder: Path, fixtures: Fixtures = FIXTURES) -> None:
    """Write a file that a command assumes, if it is missing and can be made. `word` may be `NAME=FILE` or `@FILE`."""
    top = word.rpartition("=")[2].removeprefix("@").partition("/")[0].partition(":")[0]
    if top in fixtures and not (folder / top).exists():
        fixtures[top](folder / top)


def prepare(command: list[str], folder: Path, fixtures: Fixtures = FIXTURES) -> None:
    """Write the files that a command assumes, but not those that it writes."""
    for before, word in itertools.pairwise(command):
        if before not in ("-o", "--output"):
            provide(word, folder, fixtures)


def faster(command: list[str]) -> list[str]:
    """Return the command with a high speed if it is a replay, and without the pages of cases if it validates.

    A fit has a small budget, a calibration no repetition, and arrays fit into a cache.
    """
    if command[1:4] == ["nodes", "bench", "stream"]:
        return [*command, "--set", "elements=100000"]
    if "--fit" in command:
        return [*command, "--budget", "12"]
    if command[1:3] == ["nodes", "calibrate"] and "--inventory" in command and "--repetitions" not in command:
        return [*command, "--repetitions", "1"]
    if command[1] == "validate" and "--recorded" not in command:
        return [*command, "--no-case-pages"]
    if command[1] == "replay" and "--speed" in command:
        at = command.index("--speed") + 1
        return [*command[:at], str(max(float(command[at]), FASTEST)), *command[at + 1 :]]
    return command


def run_all(found: list[Block], folder: Path) -> None:
    """Run the commands of the blocks in the current folder, `folder`."""
    for block in found:
        for command in [] if block.reason else block.commands:
            prepare(command, folder)
            judges = command[1] in ("compare", "validate") or command[1:3] == ["nodes", "check"]
            run(faster(command), VERDICTS if judges else {ExitCode.OK})
