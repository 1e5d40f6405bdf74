"""The artifact of an experiment: what a reproducibility committee asks for, in a folder with one script.

    README.md             commands, hardware, times, and the file of each claim
    rebuild.sh            checks all hashes, computes the results again in `rebuilt/`, and compares them
    SHA256SUMS            of every other file
    requirements.txt      the versions of the libraries; tracebed itself is a wheel beside it
    inputs/               the experiment and the files that it names; the real runs, which are judged again
    results/              tables, plots and ledger, or verdicts and predictions

Simulations, tables and plots are equal to the byte with the same versions of the libraries.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import yaml

from tracebed.display import time_text
from tracebed.errors import InputError
from tracebed.files import sha256_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.agent.facts import host_facts
from tracebed.orchestrator.testbeds.wheelhouse import wheel
from tracebed.outputs import ARTIFACT
from tracebed.validation.experiments.experiment import OF_REPETITIONS, OF_WORKLOADS
from tracebed.validation.experiments.file import ExperimentFile, load_experiment
from tracebed.validation.experiments.real.store import REAL, attempts
from tracebed.validation.experiments.views.ledger import FILE as LEDGER
from tracebed.validation.experiments.views.ledger import Ledger
from tracebed.validation.experiments.views.ledger_text import ours_text, printed_text
from tracebed.validation.report.markdown import table

README, SCRIPT, SUMS = ARTIFACT.parts
INPUTS, RESULTS, PINS = "inputs", "results", "requirements.txt"
LEFT_OUT = {LEDGER, "experiment.yaml", "table.parquet"}
"""Views of simulated cells that have a date, or that repeat another file."""
REBUILD = """#!/bin/sh
# Checks all files, computes the results again in rebuilt/, and compares them. Exit status 0: every file is equal.
# TRACEBED=PATH names an installed command; otherwise the wheel is installed in an environment in rebuilt/.
set -eu
cd "$(dirname "$0")"
sha256sum --quiet -c SHA256SUMS
mkdir rebuilt
if [ -z "${TRACEBED:-}" ]; then
    python3 -m venv rebuilt/environment
    rebuilt/environment/bin/pip install --quiet -r requirements.txt ./*.whl
    TRACEBED=$PWD/rebuilt/environment/bin/tracebed
fi
(cd inputs && COMMAND) || [ $? -lt LEAST ]
python3 - <<'END'
import csv, pathlib, sys


def content(path):  # the times of simulations differ from one computation to the next
    if not path.is_file() or path.name != "table.csv":
        return path.read_bytes() if path.is_file() else None
    with path.open(newline="") as file:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]


files = sorted(path for path in pathlib.Path("results").rglob("*") if path.is_file())
differ = [path for path in files if content(path) != content(pathlib.Path("rebuilt/out", *path.parts[1:]))]
for path in differ:
    print("differs:", path)
print(len(files) - len(differ), "of", len(files), "results are equal")
sys.exit(bool(differ))
END
"""


def write(
    file: ExperimentFile, folder: Path, target: Path, command: str, seconds: float, logs: Mapping[str, Path]
) -> None:
    """Write the artifact of an experiment whose results are in `folder`.

    Args:
        folder: its output folder.
        command: the command that made the results.
        seconds: time that the results took to compute, s; of replays, their own times are counted instead.
        logs: workload -> path of its log, where it was given to the command.

    Raises:
        InputError: an input is outside the folder of the experiment, the experiment has several testbeds, or `target`
            cannot be written.
    """
    is_real = file.experiment.is_real
    with ARTIFACT.folder(target, ARTIFACT.parts) as made:
        name = f"{file.name}.yaml"
        (made / INPUTS).mkdir()
        _copy_inputs(file, folder, made / INPUTS, name)
        options = []
        for workload, path in logs.items():
            _copy(path, made / INPUTS / "logs" / workload / path.name)
            options.append(f"--log {shlex.quote(f'{workload}=logs/{workload}/{path.name}')}")
        load_experiment(str(made / INPUTS / name))
        for path in _results(file, folder):
            _copy(path, made / RESULTS / path.relative_to(folder))
        again = f'"$TRACEBED" {"validate" if is_real else "experiment"} {shlex.quote(name)}'
        again = " ".join([again, *options, "-o ../rebuilt/out", *(["--no-case-pages"] if is_real else [])])
        script = REBUILD.replace("COMMAND", again).replace("LEAST", "5" if is_real else "1")
        (made / SCRIPT).write_text(script, encoding="utf-8")
        (made / SCRIPT).chmod(0o755)
        wheel(made)
        (made / PINS).write_text("".join(f"{name}=={version}\n" for name, version in sorted(_versions().items())))
        (made / README).write_text(_readme(file, folder, command, again, seconds), encoding="utf-8")
        sums = [f"{sha256_of(path)}  {path.relative_to(made)}\n" for path in sorted(made.rglob("*")) if path.is_file()]
        (made / SUMS).write_text("".join(sums), encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def _copy_inputs(file: ExperimentFile, folder: Path, inputs: Path, name: str) -> None:
    """Copy the experiment and what it names. The replays of an experiment become recorded runs."""
    text, raw = file.source.text, file.source.raw
    if file.experiment.beds:
        if len(file.experiment.beds) > 1:
            what = "an artifact is of one testbed"
            raise InputError(
                what, where=file.source.where, hint="write a file for each testbed, with one output folder"
            )
        left_out = ("testbed", "testbeds", "speed", "exclude", *OF_REPETITIONS, *OF_WORKLOADS)
        raw = {key: value for key, value in raw.items() if key not in left_out}
        raw["recorded"] = f"{REAL}/{{workload}}-{{policy}}/rep-*"
        text = "# The replays of the experiment, as recorded runs.\n" + yaml.safe_dump(raw, sort_keys=False)
        shutil.copytree(folder / REAL, inputs / REAL)
    (inputs / name).write_text(text, encoding="utf-8")
    for path in sorted(set(_named(raw, file))):
        if not (inputs / path.relative_to(file.folder)).exists():
            _copy(path, inputs / path.relative_to(file.folder))


def _named(raw: Any, file: ExperimentFile) -> Iterator[Path]:
    """Yield the files and folders that the values of an experiment name: paths, patterns, and words of commands.

    Raises:
        InputError: one is outside the folder of the experiment.
    """
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


def _results(file: ExperimentFile, folder: Path) -> list[Path]:
    """Return the files of the results that the same command makes again, equal to the byte."""
    if file.experiment.is_real:
        return [folder / "verdict.md", folder / "junit.xml", *sorted(folder.glob("predicted/*/**/jobs.parquet"))]
    own = folder / file.name
    return [path for path in sorted(own.rglob("*")) if path.is_file() and path.name not in LEFT_OUT]


def _versions() -> dict[str, str]:
    """Return name -> version of the libraries that tracebed needs, and that these need."""
    found: dict[str, str] = {}
    waiting = ["tracebed"]
    while waiting:
        name = waiting.pop()
        try:
            own = distribution(name)
        except PackageNotFoundError:  # for another platform or Python
            continue
        for text in own.requires or []:
            needed = re.split(r"[^\w.-]", text, maxsplit=1)[0].lower()
            if "extra ==" not in text and needed not in found:
                found[needed] = ""
                waiting.append(needed)
        found[name] = own.version
    del found["tracebed"]
    return {name: version for name, version in found.items() if version}


def _readme(file: ExperimentFile, folder: Path, command: str, again: str, seconds: float) -> str:
    """Return the page of the artifact."""
    replayed = attempts(folder / REAL) if file.experiment.beds else []
    taken = sum(attempt.seconds for attempt in replayed) if replayed else seconds
    hosts = {"this machine": host_facts()}
    for path in sorted((folder / REAL).glob("*/rep-*")) if file.experiment.beds else []:
        hosts |= {str(host["name"]): host for host in Run.load(path).info.hosts if "name" in host}
    keys = ("cpu", "cores", "memory_mib", "kernel", "python")
    machines = [[name, *(str(host.get(key, "unknown")) for key in keys)] for name, host in hosts.items()]
    parts = [
        ["<!-- an artifact of tracebed -->", f"# {file.name}", "", file.experiment.about or "An experiment."],
        ["## Rebuild", "", "    ./rebuild.sh"],
        [
            "The script checks the hashes, installs the wheel in an environment of its own, computes the results again",
            "in `rebuilt/`, and compares each with that in `results/`. It needs Linux, Python and a package index.",
        ],
        ["## Commands", "", f"    {command}", "", "The script runs, in `inputs/`:", "", f"    {again}"],
        ["## Times", "", f"{'Replays' if replayed else 'Simulations'}: {time_text(taken)}, one after the other."],
        ["## Hardware", "", *table(("machine", *keys), machines)],
        [
            "## Claims and files",
            "",
            *table(("claim", "printed", "here", "matches", "file"), list(_claims(file, folder))),
        ],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _claims(file: ExperimentFile, folder: Path) -> Iterable[tuple[str, str, str, str, str]]:
    """Yield a row per claim and per plot of simulated cells, or per simulator: text, printed, ours, match, file."""
    if file.experiment.is_real:
        for name in file.experiment.simulators:
            yield f"verdict on {name}", "-", "see the file", "-", f"{RESULTS}/verdict.md"
        return
    own = folder / file.name
    for row in Ledger.load(own / LEDGER).rows:
        what = " ".join(filter(None, (row.element, row.claim or f"{row.figure}, {row.at}")))
        matches = {True: "yes", False: "no", None: "not computed"}[row.matches]
        yield what, printed_text(row), ours_text(row), matches, f"{RESULTS}/{file.name}/ledger.csv"
    for name, plot in file.experiment.plots.items():
        for path in sorted((own / "plots").glob(f"{name}*.svg")):
            yield plot.element or name, "-", "a picture", "-", f"{RESULTS}/{path.relative_to(folder)}"
