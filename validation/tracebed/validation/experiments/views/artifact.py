"""The artifact of an experiment: what a reproducibility committee asks for, in a folder with one script.

    README.md             commands, hardware, times, and the file of each claim
    rebuild.sh            checks all hashes, computes the results again in `rebuilt/`, and compares them
    SHA256SUMS            of every other file
    requirements.txt      the versions of the libraries; tracebed itself is a wheel beside it
    inputs/               the experiment and the files that it names; the real runs, which are judged again
    results/              tables, plots and ledger, or verdicts and predictions

Simulations, tables and plots are equal to the byte with the same versions of the libraries. An artifact is only
written if its script finds equal results.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from tracebed.ground.display import time_text
from tracebed.ground.errors import InputError
from tracebed.ground.files import sha256_of
from tracebed.ground.input_files import read_json
from tracebed.ground.outputs import ARTIFACT
from tracebed.orchestrator.configurations import CONFIGURATIONS
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.agent.facts import host_facts
from tracebed.orchestrator.testbeds.wheelhouse import wheel
from tracebed.validation.experiments.experiment import OF_REPETITIONS, Point
from tracebed.validation.experiments.file import ExperimentFile, load_experiment
from tracebed.validation.experiments.store import LOG, PLAN, PREDICTED, REAL, attempts, read_plan, run_of
from tracebed.validation.report.markdown import table

README, SCRIPT, SUMS = ARTIFACT.parts
INPUTS, RESULTS, PINS, BASELINES = "inputs", "results", "requirements.txt", "baseline"
REPLAYED = "-replayed.yaml"
"""End of the name of the experiment as it was replayed; the experiment of the artifact has recorded runs."""
LEFT_OUT = {"ledger.json", "experiment.yaml", "table.parquet"}
"""Views of simulated cells that have a date, or that repeat another file."""
SHOWN = 5  # largest number of differences that an error repeats
REBUILD = """#!/bin/sh
# Checks all files, computes the results again in rebuilt/, and compares them. Exit status 0: every file is equal.
# TRACEBED=PATH names an installed command; otherwise the wheel is installed in an environment in rebuilt/.
set -eu
cd "$(dirname "$0")"
sha256sum --quiet -c SHA256SUMS
rm -rf rebuilt
mkdir rebuilt
if [ -z "${TRACEBED:-}" ]; then
    python3 -m venv rebuilt/environment
    rebuilt/environment/bin/pip install --quiet -r requirements.txt ./*.whl
    TRACEBED=$PWD/rebuilt/environment/bin/tracebed
fi
(cd inputs && "$TRACEBED" COMMAND) || [ $? -lt LEAST ]
python3 - <<'END'
import csv, itertools, pathlib, sys


def rows(path):
    if not path.is_file():
        return ["no such file"]
    if path.suffix not in (".csv", ".md", ".xml"):
        return [path.read_bytes()]
    with path.open(newline="", encoding="utf-8") as file:
        if path.name == "table.csv":  # the times of simulations differ from one computation to the next
            return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]
        return file.read().splitlines()


def difference(one, two):
    pairs = enumerate(itertools.zip_longest(one, two, fillvalue=""), 1)
    row, before, after = next((row, *pair) for row, pair in pairs if pair[0] != pair[1])
    if isinstance(before, dict) and isinstance(after, dict):
        sides = ((before, after), (after, before))
        before, after = ({key: one[key] for key in one if one[key] != two.get(key)} for one, two in sides)
    texts = ["other bytes" if isinstance(each, bytes) else str(each)[:300] for each in (before, after)]
    return f"row {row}: {texts[0]} became {texts[1]}"


files = sorted(path for path in pathlib.Path("results").rglob("*") if path.is_file())
differ = 0
for path in files:
    found = [rows(path), rows(pathlib.Path("rebuilt/out", *path.parts[1:]))]
    if found[0] != found[1]:
        differ += 1
        print(f"differs: {path}: {difference(*found)}")
print(len(files) - differ, "of", len(files), "results are equal")
sys.exit(differ > 0)
END
"""


@dataclass(frozen=True)
class Made:
    """How the results of an experiment were made."""

    points: Sequence[Point]
    """The chosen cells."""
    simulators: Sequence[str] = ()
    """The chosen simulators of real runs."""
    options: Sequence[str] = ()
    """Options of the command that change the results, as words of a shell."""
    baseline: Path | None = None
    """File of the baseline, where it was given to the command."""
    seconds: float = 0.0
    """Time that the results took to compute, s; of replays, their own times are counted instead."""
    logs: Mapping[str, Path] = field(default_factory=dict)
    """Workload -> path of its log, where it was given to the command."""
    claims: Sequence[tuple[str, str, str, str]] = ()
    """Of simulated cells, each claim in words, the printed figure, ours, and whether it matches."""


def write(file: ExperimentFile, folder: Path, target: Path, made: Made) -> None:
    """Write the artifact of an experiment whose results are in the output folder `folder`, and check it.

    Raises:
        InputError: an input is outside the folder of the experiment, `target` cannot be written, or the script of the
            artifact does not make equal results. The error names the rows that differ.
    """
    is_real = file.experiment.is_real
    with ARTIFACT.folder(target, ARTIFACT.parts) as room:
        name = f"{file.name}.yaml"
        (room / INPUTS).mkdir()
        _copy_inputs(file, folder, room / INPUTS, name, made)
        options = [*made.options]
        for workload, path in made.logs.items():
            _copy(path, room / INPUTS / "logs" / workload / path.name)
            options.append(f"--log {shlex.quote(f'{workload}=logs/{workload}/{path.name}')}")
        if made.baseline is not None:
            _copy(made.baseline, room / INPUTS / BASELINES / made.baseline.name)
            options.append(shlex.join(["--baseline", f"{BASELINES}/{made.baseline.name}"]))
        load_experiment(str(room / INPUTS / name))
        for path in _results(file, folder, made):
            _copy(path, room / RESULTS / path.relative_to(folder))
        again = " ".join(["validate" if is_real else "experiment", shlex.quote(name), *options, "-o ../rebuilt/out"])
        again += " --no-case-pages" if is_real else ""
        script = REBUILD.replace("COMMAND", again).replace("LEAST", "5" if is_real else "1")
        (room / SCRIPT).write_text(script, encoding="utf-8")
        (room / SCRIPT).chmod(0o755)
        wheel(room)
        (room / PINS).write_text("".join(f"{name}=={version}\n" for name, version in sorted(_versions().items())))
        (room / README).write_text(_readme(file, folder, again, made), encoding="utf-8")
        sums = [f"{sha256_of(path)}  {path.relative_to(room)}\n" for path in sorted(room.rglob("*")) if path.is_file()]
        (room / SUMS).write_text("".join(sums), encoding="utf-8")
        _check(room, target)


def _check(room: Path, target: Path) -> None:
    """Run the script of an artifact with the tracebed of this process. Raise InputError if a result differs."""
    with tempfile.TemporaryDirectory(prefix="tracebed-") as scratch:
        command = Path(scratch, "tracebed")
        program = "import sys; sys.argv[0] = 'tracebed'; from tracebed.cli import main; main()"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{program}" "$@"\n')
        command.chmod(0o755)
        environment = {**os.environ, "TRACEBED": str(command)}
        done = subprocess.run(
            [str(room / SCRIPT)], env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    if done.returncode:
        differ = [line.removeprefix("differs: ") for line in done.stdout.splitlines() if line.startswith("differs: ")]
        texts = [_with_jobs(line, room) for line in differ[:SHOWN]]
        said = [line for line in done.stderr.splitlines() if line.strip()]
        if said and (not differ or any("no such file" in line for line in differ)):
            texts.insert(0, said[-1])
        more = f"; and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
        what = f"the artifact does not rebuild its results: {'; '.join(texts)}{more}"
        hint = "a result that this command did not make is left from another one: name another folder with -o"
        raise InputError(what, where=str(target), hint=hint)
    shutil.rmtree(room / "rebuilt")


def _with_jobs(line: str, room: Path) -> str:
    """Return a line about a file that differs; for a table of jobs with the first value that differs."""
    path = Path(line.partition(": ")[0])
    again = room / "rebuilt/out" / path.relative_to(RESULTS)
    if path.suffix != ".parquet" or not again.is_file():
        return line
    one, two = (pd.read_parquet(each).set_index("job_id") for each in (room / path, again))
    if list(one.index) != list(two.index):
        return f"{path}: {len(one)} jobs became {len(two)} jobs, or have another order"
    for name in [each for each in one if each in two]:
        if (rows := ~((one[name] == two[name]) | (one[name].isna() & two[name].isna()))).any():
            job = one.index[rows.to_numpy()][0]
            return f"{path}: job {job}, {name}: {one[name][job]} became {two[name][job]}"
    return line


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def _copy_inputs(file: ExperimentFile, folder: Path, inputs: Path, name: str, made: Made) -> None:
    """Copy the experiment and what it names. The replays of an experiment become recorded runs."""
    text = file.source.text
    if beds := file.experiment.beds:
        (inputs / f"{file.name}{REPLAYED}").write_text(text, encoding="utf-8")
        left_out = ("testbed", "testbeds", "speed", *OF_REPETITIONS)
        raw = {key: value for key, value in file.source.raw.items() if key not in left_out}
        rates = {bed: {"work_rate": rate} for bed, rate in file.experiment.work_rates.items()}
        own = rates.get("", {}) if "" in beds else {"testbeds": {bed: rates.get(bed, {}) for bed in beds}}
        raw["recorded"] = {"runs": f"{REAL}/{{case}}/rep-*", **own}
        text = "# The replays of the experiment, as recorded runs.\n" + yaml.safe_dump(raw, sort_keys=False)
        _copy_runs(folder / REAL, inputs / REAL, {file.experiment.case_name(point) for point in made.points})
    (inputs / name).write_text(text, encoding="utf-8")
    for path in sorted({*_named(file.source.raw, file), *_configurations(file)}):
        if not (inputs / path.relative_to(file.folder)).exists():
            _copy(path, inputs / path.relative_to(file.folder))


def _copy_runs(real: Path, target: Path, cases: set[str]) -> None:
    """Copy the plan of replays, the log of the attempts, and the runs of some cases that are done."""
    for name in (PLAN, LOG):
        _copy(real / name, target / name)
    for slot in read_plan(real)["order"]:
        if slot.cell in cases and run_of(slot, real) is not None:
            _copy(real / slot.folder, target / slot.folder)


def _configurations(file: ExperimentFile) -> Iterator[Path]:
    """Yield the configuration files of the policies, with the files that they include."""
    for policy in file.experiment.policies:
        for name in [policy.conf] if isinstance(policy.conf, str) else policy.conf or ():
            yield from CONFIGURATIONS.load(policy.policy).read_with(file.folder / name)


def _named(raw: Any, file: ExperimentFile) -> Iterator[Path]:
    """Yield the files and folders, all in that of the experiment, that its values, patterns and commands name."""
    if isinstance(raw, Mapping | list):
        for value in raw.values() if isinstance(raw, Mapping) else raw:
            yield from _named(value, file)
        return
    if not isinstance(raw, str):
        return
    for word in {raw, raw.rpartition(":")[0], *(raw.split() if " " in raw else ())}:
        pattern = re.sub(r"\{\w+\}", "*", word)
        if not word or set(pattern) <= set("*./ "):
            continue
        if Path(word).is_absolute() or ".." in Path(word).parts:
            if (file.folder / word).exists() and word == raw:
                hint = "copy it beside the file of the experiment"
                raise InputError(f"{word} is outside the folder of the experiment", where=file.source.where, hint=hint)
        elif "*" in pattern:
            yield from file.folder.glob(pattern)
        elif (file.folder / word).exists():
            yield file.folder / word


def _results(file: ExperimentFile, folder: Path, made: Made) -> list[Path]:
    """Return the files of the results that the same command makes again, equal to the byte."""
    if file.experiment.is_real:
        cases = [file.experiment.case_name(point) for point in made.points]
        places = [folder / PREDICTED / name / case for name in made.simulators for case in cases]
        jobs = [path for place in places for path in sorted(place.glob("**/jobs.parquet"))]
        return [folder / "verdict.md", folder / "junit.xml", *jobs]
    own = folder / file.name
    return [path for path in sorted(own.rglob("*")) if path.is_file() and path.name not in LEFT_OUT]


def _versions() -> dict[str, str]:
    """Return name -> version of the libraries that tracebed needs, and that these need."""
    versions: dict[str, str] = {}
    waiting = ["tracebed"]
    while waiting:
        name = waiting.pop()
        try:
            own = distribution(name)
        except PackageNotFoundError:  # for another platform or Python
            continue
        for text in own.requires or []:
            needed = re.split(r"[^\w.-]", text, maxsplit=1)[0].lower()
            if "extra ==" not in text and needed not in versions:
                versions[needed] = ""
                waiting.append(needed)
        versions[name] = own.version
    del versions["tracebed"]
    return {name: version for name, version in versions.items() if version}


def _readme(file: ExperimentFile, folder: Path, again: str, made: Made) -> str:
    """Return the page of the artifact."""
    beds = file.experiment.beds
    replayed = attempts(folder / REAL) if beds else []
    taken = sum(attempt.seconds for attempt in replayed) if replayed else made.seconds
    hosts = {"this machine": host_facts()}
    for path in sorted((folder / REAL).glob("*/rep-*/run.json")) if beds else []:
        hosts |= {str(host["name"]): host for host in Run.load(path.parent).info.hosts if "name" in host}
    keys = ("cpu", "cores", "memory_mib", "kernel", "python")
    machines = [[name, *(str(host.get(key, "unknown")) for key in keys)] for name, host in hosts.items()]
    parts = [
        ["<!-- an artifact of tracebed -->", f"# {file.name}", "", file.experiment.about or "An experiment."],
        ["## Rebuild", "", "    ./rebuild.sh"],
        [
            "The script checks the hashes, installs the wheel in an environment of its own, computes the results again",
            "in `rebuilt/`, and compares each with that in `results/`. It needs Linux, Python and a package index.",
        ],
        [
            "## Commands",
            "",
            "The script runs this command in `inputs/`; the wheel provides `tracebed`:",
            "",
            f"    tracebed {again}",
        ],
        *([_testbeds(file, folder)] if beds else []),
        ["## Times", "", f"{'Replays' if replayed else 'Simulations'}: {time_text(taken)}, one after the other."],
        ["## Hardware", "", *table(("machine", *keys), machines)],
        [
            "## Claims and files",
            "",
            *table(("claim", "printed", "here", "matches", "file"), list(_claims(file, folder, made))),
        ],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _testbeds(file: ExperimentFile, folder: Path) -> list[str]:
    """Return the part of the page on the testbeds of the replays."""
    rows = []
    for case, facts in read_plan(folder / REAL)["cells"].items():
        bed, speed = facts["inventory"], f"{facts['timing']['speed']:g}"
        rows.append([case, bed["name"], bed["testbed"], str(len(bed["nodes"])), speed, facts["work_rate"] or "none"])
    return [
        "## Testbed",
        "",
        f"`{INPUTS}/{file.name}{REPLAYED}` is the experiment as it was replayed, and `{INPUTS}/{REAL}/{PLAN}` has all",
        "settings of the replays. A calibration with the work rate is given by its SHA-256.",
        "",
        *table(("case", "testbed", "kind", "nodes", "speed", "work rate"), rows),
    ]


def _claims(file: ExperimentFile, folder: Path, made: Made) -> Iterable[tuple[str, str, str, str, str]]:
    """Yield a row per claim and per plot of simulated cells, or per simulator: text, printed, ours, match, file."""
    if file.experiment.is_real:
        for each in read_json(folder / "verdict.json", "verdicts")["simulators"]:
            yield f"verdict on {each['simulator']['name']}", "-", each["verdict"], "-", f"{RESULTS}/verdict.md"
        return
    for claim in made.claims:
        yield *claim, f"{RESULTS}/{file.name}/ledger.csv"
    for name, plot in file.experiment.plots.items():
        for path in sorted((folder / file.name / "plots").glob(f"{name}*.svg")):
            yield plot.element or name, "-", "a picture", "-", f"{RESULTS}/{path.relative_to(folder)}"
