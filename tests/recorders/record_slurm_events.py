"""Records what a real Slurm does with begin times, dependencies, arrays, licences, reservations and preemption.

    python -m tests.recorders.record_slurm_events NAME...      # scenarios of `slurm_scenarios.py`; all without a name

writes tests/slurm_recordings/events/NAME.json: the configuration, the jobs, and when each started and ended. Needs root
and Slurm, and with accounting slurmdbd and mariadb. Each scenario takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.executables import write_program
from tests.oracles.slurm_scenarios import DRAWN, SCENARIOS, Scenario, Submitted
from tests.servers.slurmd import SETTINGS, Slurm

FOLDER = Path(__file__).parents[1] / "slurm_recordings" / "events"
LOGGED = {"DebugFlags": "Backfill", "SlurmctldDebug": "debug3", "LogTimeFormat": "iso8601_ms"}
AT_ONCE = 4


class DesignedSlurm(Slurm):
    """A Slurm with the nodes and partitions of a scenario."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        settings = dict(line.split("=", 1) for line in scenario.settings)
        super().__init__(folder, scenario.nodes, accounting=bool(scenario.accounts), settings=settings | LOGGED)
        self.lines = scenario.lines

    def _configure(self) -> None:
        super()._configure()
        self._replace_nodes(self.lines)
        write_program(self.folder / "epilog", "#!/bin/sh\nsleep 6\n")
        write_program(self.folder / "epilog-40", "#!/bin/sh\nsleep 40\n")


def options(job: Submitted, zero: float) -> list[str]:
    """Return the arguments of sbatch for a job."""
    found = ["-n", str(job.cores), *(["-t", str(job.limit)] if job.limit else []), *job.options]
    for name, value in job.columns.items():
        if name == "earliest_start":
            instant = datetime.fromtimestamp(zero + float(value), UTC)
            found.append(f"--begin={instant:%Y-%m-%dT%H:%M:%S}")
        elif name in OPTIONS:
            found.append(f"--{OPTIONS[name]}={value}")
    return found


OPTIONS = {
    **{name: name for name in ("dependency", "reservation", "licenses", "partition")},
    "queue": "qos",
    "application": "job-name",
}
"""Column of a workload -> option of sbatch."""


def run(folder: Path, scenario: Scenario) -> dict[str, Any]:
    """Run a scenario. Return the instants (s since the first submission) and final state of each job."""
    slurm = DesignedSlurm(folder, scenario)
    texts: list[str] = []
    try:
        slurm.up()
        for line in scenario.accounts:
            slurm("sacctmgr", "-i", *line.split())
        zero = time.time()
        steps: list[tuple[float, Any]] = [*scenario.actions, *((job.at, job) for job in scenario.jobs)]
        asked = []
        for at, step in sorted(steps, key=lambda step: step[0]):
            time.sleep(max(0.0, zero + at - time.time()))
            if isinstance(step, str):
                stamps = re.sub(r"@(-?\d+)", lambda found: f"{_stamp(zero + int(found[1]))}", step)
                slurm(*stamps.split())
                texts.append(slurm("scontrol", "show", "reservation"))
                continue
            script = f"for k in $(seq {step.run}); do sleep 1; done" if scenario.stepwise else f"sleep {step.run}"
            script += "; exit 1" if step.fails else ""
            script = f"trap '' TERM; {script}" if step.stubborn else script
            tasks = [f"--array={step.tasks}"] if step.tasks else []
            asked.append(round(time.time() - zero, 3))
            more = [text for cores in step.components for text in (":", "-n", str(cores), "-t", str(step.limit))]
            slurm("sbatch", "-o", "/dev/null", "-D", "/", *options(step, zero), *tasks, "--wrap", script, *more)
        time.sleep(max(0.0, zero + scenario.until - time.time()))
        shown = slurm("scontrol", "-o", "-a", "show", "jobs")
        database = {}
        if scenario.accounts:
            slurm("sacctmgr", "dump", "trial", f"file={folder}/dump.cfg")
            database = {"dump": (folder / "dump.cfg").read_text(), "qos": slurm("sacctmgr", "-P", "show", "qos")}
    finally:
        slurm.down()
        shutil.copy(folder / "slurmctld.log", f"/tmp/events-{scenario.name}.log")
    found = {}
    for line in shown.splitlines():
        field = dict(re.findall(r"(\w+)=(\S+)", line))
        array = f"{field['ArrayJobId']}_{field['ArrayTaskId']}" if "ArrayTaskId" in field else field["JobId"]
        found[array] = [*(_since(field[name], zero) for name in ("StartTime", "EndTime")), field["JobState"]]
        found[array] += [field.get("NodeList", "")]
        found[array] += [field["Reason"], int(field.get("Restarts", 0))]
    return {"zero": zero, "asked": asked, "found": found, "reservations": texts, **database}


def _stamp(instant: float) -> str:
    return f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%dT%H:%M:%S}"


def _since(text: str, zero: float) -> float | None:
    return None if text == "Unknown" else round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() - zero, 3)


def record(scenario: Scenario) -> None:
    """Record a scenario."""
    with tempfile.TemporaryDirectory() as folder:
        content = run(Path(folder), scenario)
    settings = dict(line.split("=", 1) for line in scenario.settings)
    kept = [name for name in ("SchedulerType", "KillWait") if name not in settings]
    conf = [f"{name}={SETTINGS[name]}" for name in kept]
    content["conf"] = "\n".join([*conf, *scenario.settings, *scenario.lines]) + "\n"
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{scenario.name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


def main() -> None:
    """Record the scenarios, several at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(record, (SCENARIOS | DRAWN)[name]) for name in given.names or SCENARIOS]:
            done.result()


if __name__ == "__main__":
    main()
