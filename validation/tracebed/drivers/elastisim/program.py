"""The program of ElastiSim: its location, its input folder, and its process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tracebed.converters.formats import elastisim as format
from tracebed.converters.formats.tools.elastisim_models import NANO
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, Tolerated
from tracebed.ground.files import sha256_of
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.validation.simulators.messages import reason_in

VARIABLE = "TRACEBED_ELASTISIM"
"""Environment variable with the path of the program."""
LOG = "elastisim.log"
"""File with the output of the program."""
DEADLOCK = "Deadlock detected"
"""Message of SimGrid, with exit code 0, if a job can never start."""


def find(given: str | None) -> Path:
    """Return the path of the program: `given`, that of the variable TRACEBED_ELASTISIM, or `elastisim` on the PATH.

    Raises:
        InputError: there is no such program.
    """
    chosen = given or os.environ.get(VARIABLE) or "elastisim"
    found = shutil.which(chosen)
    if found is None:
        hint = f"install ElastiSim, and give program=FILE with --with, set {VARIABLE}, or put it on the PATH"
        raise InputError(f"the program of ElastiSim is not found: {chosen}", hint=hint)
    return Path(found).resolve()


def version(options: Mapping[str, str]) -> str:
    """Return the hash of the program of the option `program`, in place of a version number; empty if it is missing."""
    with suppress(InputError):
        return f"sha256 {sha256_of(find(options.get('program')))[:12]}"
    return ""


# -- input -----------------------------------------------------------------------------------------------------------


def write_input(
    workload: Workload,
    folder: Path,
    *,
    address: str,
    iterations: Sequence[int],
    overheads: Overheads,
    shift_s: float = 0.0,
    interval_s: float = 0.0,
) -> None:
    """Write the input files of ElastiSim with the exporter of `tracebed convert`, and set what a simulation needs.

    Args:
        workload: the jobs, without time limits: the walltimes of ElastiSim are whole seconds, and a job that ends at
            its walltime would be counted twice.
        address: the address of the ZeroMQ socket.
        iterations: the number of iterations of each job, shape (jobs,).
        overheads: overheads in trace seconds; used are launch, end and reconfiguration.
        shift_s: time that is added to the submit times, s.
        interval_s: interval of periodic messages, s; 0: none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)  # the exporter counts again what the run already has as warnings
        format.write_folder(workload, folder)

    def change(path: Path, **values: Any) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | values) + "\n")

    change(folder / "configuration.json", zmq_url=address, scheduling_interval=interval_s)
    jobs = json.loads((folder / "jobs.json").read_text())["jobs"]
    for job, count in zip(jobs, iterations, strict=True):
        job["submit_time"] += shift_s
        job["arguments"]["iterations"] = count
    change(folder / "jobs.json", jobs=jobs)
    before, after, resize = _phases(overheads)
    for path in folder.glob("application*.json"):
        (work,) = json.loads(path.read_text())["phases"]
        change(path, on_init=before, on_reconfiguration=resize, phases=[work, *after])


def _phases(overheads: Overheads) -> tuple[Any, list[Any], Any]:
    """Return the phases before the work, after the work, and at a reconfiguration; None or empty without overhead."""

    def phase(name: str, formula: str) -> dict[str, Any]:
        return {"tasks": [{"type": "busy_wait", "name": name, "delay": f"({formula}) / {NANO}", "pattern": "uniform"}]}

    def ns(seconds: float) -> int:
        return round(seconds * NANO)

    join, rank = ns(overheads.launch_join_s), ns(overheads.launch_rank_s)
    before = f"{ns(overheads.launch_s)} + min(num_nodes - 1, 1) * ({join} + {rank} * (num_nodes - 2))"
    after = f"{ns(overheads.end_s)} + {ns(overheads.end_rank_s)} * (num_nodes - 1)"
    ends = phase("end", after) | {"iterations": 1, "scheduling_point": False, "barrier": True}
    return (
        phase("launch", before) if overheads.launch_s or join or rank else None,
        [ends] if overheads.end_s or overheads.end_rank_s else [],
        phase("reconfiguration", f"{ns(overheads.reconfiguration_s)}") if overheads.reconfiguration_s else None,
    )


# -- process ---------------------------------------------------------------------------------------------------------


class Process:
    """A running ElastiSim, in a process group of its own, which `stop` kills."""

    def __init__(self, program: Path, folder: Path) -> None:
        """Start the program in `folder`.

        Raises:
            InputError: the program cannot be started.
        """
        self.log = folder / LOG
        self._program = program
        with_parent = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []  # if this process is killed
        command = [*with_parent, str(program), "configuration.json", "--log=root.thresh:warning"]
        try:
            with self.log.open("wb") as output:
                self._process = subprocess.Popen(
                    command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        except OSError as error:
            hint = "name the program of ElastiSim by --with elastisim,program=FILE"
            raise InputError(f"cannot be started: {error.strerror}", where=str(program), hint=hint) from error

    def runs(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process. Return whether it has ended in time."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, timeout_s))
        return not self.runs()

    def stop(self) -> None:
        """Kill the process group, and wait for its end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def failure(self) -> InputError:
        """Return the error for a process that ended before the simulation was finished."""
        text = self.log.read_text(errors="replace").strip()
        if DEADLOCK in text:
            what = "ElastiSim detected a deadlock: a job can never start, or never reaches its end"
            return InputError(what, hint="--with elastisim,keep=FOLDER keeps its files")
        hint = "--with elastisim,keep=FOLDER keeps its files"
        if "shared librar" in text:
            hint = "install the libraries: apt-get install libsimgrid3.32 libzmq5"
        said = f": {reason_in(text)}" if text else ", without a message"
        what = f"ElastiSim ended early with status {self._process.poll()}{said}"
        return InputError(what, where=str(self._program), hint=hint)
