"""`tracebed demo`: all steps from a model to a verdict, as commands on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tracebed.cli.messages import emit
from tracebed.cli.options import STORE, OutputPath, json_option, replace_option
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.files import set_aside
from tracebed.ground.outputs import REPLACE

MOST_NODES = 8
SPEED = 200
"""The 22 minutes of the workload pass in seven seconds."""
LONGEST = "375s"
"""Run time to which the longest job is compressed."""
ARRIVALS = 0.0084
"""Factor on the times between arrivals, for an offered load of 0.9."""
REPETITIONS, MOST_REPETITIONS = 5, 12
"""Number of healthy repetitions that a verdict on one workload needs, and the most that the noise may require."""
SUITE = """\
# A suite: `tracebed validate` replays the workload, simulates it, and compares.
workloads: {{demo: workload.parquet}}
policies: [pref]
testbed: {{inventory: inventory.yaml, speed: {speed:g}, work_rate: calibration.yaml}}
repetitions: {repetitions}
settle_s: 0.2
simulators:
  tracebed: {{calibration: calibration.yaml, seeds: 20}}  # an ensemble: twenty predictions with drawn delays
"""
NODES = {
    "real": """\
# Nodes of one CPU each: pinned jobs compute for a part of their time (duty), so that other processes do not matter.
name: demo
{place}nodes:
{indent}  - {{name: "n[1-{count}]", cpus: auto, cores: 1}}
""",
    "emulated": """\
# Emulated nodes: jobs sleep for the time that their work would take.
name: demo
{place}nodes:
{indent}  - {{name: "n[1-{count}]", cores: 1, emulated: true}}
""",
}
PLACES = {"local": "", "docker": "groups:\n  demo:\n    provider: docker\n    base: {base}\n    "}


@click.command()
@click.option(
    "-o",
    "--output",
    type=OutputPath(STORE),
    default=Path("tracebed-demo"),
    show_default=True,
    metavar="FOLDER",
    help="Folder of the workload, the runs and the report.",
)
@click.option(
    "--on",
    "place",
    type=click.Choice([*PLACES, "emulated"]),
    default="local",
    show_default=True,
    help="Place of the nodes: CPUs of this machine, containers of Docker or Podman, or nowhere (emulated).",
)
@click.option(
    "--base",
    default="python:3-slim",
    show_default=True,
    metavar="IMAGE",
    help="Image with Python 3.11 or newer, from which the image of the containers is built.",
)
@replace_option
@json_option
def demo(output: Path, place: str, base: str, replace: bool, as_json: bool) -> ExitCode:
    """Draw a small workload, calibrate this machine, replay the workload five times, predict it, and give a verdict.

    Each CPU (up to 8) is a node; jobs are processes that compute, shrink and expand. It takes about 90 seconds, and a
    minute more if the noise of the machine requires more repetitions. Every step is a command that is shown; the files
    that it leaves can be used in others.

    \b
    Examples:
      tracebed demo && xdg-open tracebed-demo/verdict/tracebed.html
      tracebed demo --on docker
    """
    cpus = len(os.sched_getaffinity(0))
    emulated = place == "emulated" or cpus < 2
    nodes = 4 if emulated else min(cpus, MOST_NODES)
    inventory, suite, verdict = output / "inventory.yaml", output / "suite.yaml", output / "verdict"
    drawn, scaled, mixed = (output / f"{name}.parquet" for name in ("drawn", "scaled", "workload"))
    try:
        output.mkdir(parents=True, exist_ok=True)
        if any(output.iterdir()) and not (inventory.is_file() and b"\nname: demo\n" in inventory.read_bytes()):
            raise InputError("holds something else than a demo", where=str(output), hint="name another folder with -o")
        if (verdict / "verdict.json").exists() and not replace:
            raise InputError("exists: a demo with its verdict", where=str(output), hint=REPLACE)
        text = NODES["emulated" if emulated else "real"]
        where, indent = PLACES.get(place, "").format(base=json.dumps(base)), "    " if place == "docker" else ""
        inventory.write_text(text.format(place=where, indent=indent, count=nodes), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=str(output), hint="name another folder with -o"
        ) from error
    steps = (
        ("generate cirne --nodes 16 --jobs 20 --seed 55 -o", drawn),
        ("scale", drawn, "--inventory", inventory, f"--runtime max={LONGEST} --arrivals {ARRIVALS} -o", scaled),
        ("malleable", scaled, "--share 0.7 --seed 1 -o", mixed),
        ("nodes calibrate --inventory", inventory, f"--speed {SPEED} --repetitions 1 -o", output / "calibration.yaml"),
    )
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), _nodes_up(inventory):
        for *words, target in steps:
            if status := _run(*words, target, *(["--replace"] if target.exists() else [])):
                return status
        with set_aside(verdict):  # its runs had another calibration
            if status := _validate(suite, verdict):
                raise click.exceptions.Exit(status)
    if as_json:
        click.echo((verdict / "verdict.json").read_text(encoding="utf-8"), nl=False)
    emit(f"\nOpen {verdict / 'tracebed.html'} in a browser.")
    return ExitCode.OK


@contextlib.contextmanager
def _nodes_up(inventory: Path) -> Iterator[None]:
    """Bring up the nodes once for all steps, and take them down at the end."""
    _run("nodes up", inventory)
    try:
        yield
    finally:
        _run("nodes down", inventory)


def _validate(suite: Path, verdict: Path) -> ExitCode:
    """Replay and compare, and again if some were disturbed or the noise requires more. Return the status or OK."""
    repetitions = REPETITIONS
    while True:
        suite.write_text(SUITE.format(speed=SPEED, repetitions=repetitions), encoding="utf-8")
        if (status := _run("validate", suite, "-o", verdict)) == ExitCode.USAGE:
            return status
        lost, needed = _missing(verdict / "verdict.json")
        healthy = repetitions - lost
        needed = needed if healthy >= REPETITIONS else REPETITIONS
        if healthy >= needed:
            return ExitCode.OK
        if lost >= REPETITIONS or lost + needed > MOST_REPETITIONS:
            if healthy < REPETITIONS:
                emit("\nOther processes disturbed the replays: repeat the demo on an idle machine, or --on emulated.")
            return ExitCode.OK
        if needed > REPETITIONS:
            emit(f"\nThe noise of this machine requires {needed} repetitions: {needed - healthy} more are replayed.")
        else:
            emit(f"\n{lost} of {repetitions} repetitions were excluded; {needed - healthy} more are replayed.")
        repetitions = lost + needed


def _missing(verdict: Path) -> tuple[int, int]:
    """Return the numbers of repetitions that were disturbed and excluded, and that an undecided metric needs."""
    (validation,) = json.loads(verdict.read_text(encoding="utf-8"))["simulators"]
    (case,) = validation["cases"]
    lost = sum(bool(repetition["excluded"]) for repetition in case["repetitions"])
    undecided = [each for each in validation["metrics"] if each["gate"] and each["verdict"] == "inconclusive"]
    return lost, max([REPETITIONS, *(each["repeats_needed"] or 0 for each in undecided)])


def _run(*words: str | Path) -> ExitCode:
    """Show a command, run it in this process, and return its exit status."""
    from tracebed.cli import messages, tracebed

    arguments = [part for word in words for part in ([str(word)] if isinstance(word, Path) else shlex.split(word))]
    click.secho(f"\n$ tracebed {shlex.join(arguments)}", bold=True, err=True)
    return ExitCode(tracebed.main(arguments, standalone_mode=False, obj=messages.current()) or 0)
