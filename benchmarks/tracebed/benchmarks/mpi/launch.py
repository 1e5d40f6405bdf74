"""The start of the malleable MPI program: mpiexec, the resource manager that answers its checks, and its result."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tracebed.benchmarks.dmr import Answer, SizeRange, check_status
from tracebed.benchmarks.dmr_manager import ResourceManager
from tracebed.benchmarks.mpi.program import ITEM, MODULE, ProgramParameters
from tracebed.benchmarks.node_table import FOLDER
from tracebed.benchmarks.stages import ReconfigurationStages
from tracebed.ground.errors import InputError, TestbedError

INSTALL = "pip install mpi4py mpich"
# Settings of the two network libraries of MPICH: all processes are on this machine.
LOOPBACK = {"FI_TCP_IFACE": "lo", "FI_SOCKETS_IFACE": "lo", "UCX_NET_DEVICES": "lo"}
OPEN_MPI = ("--map-by", ":OVERSUBSCRIBE")  # Open MPI spawns no more processes than cores without this option of mpiexec
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MARK = "TRACEBED_MPI"  # environment variable with the PID of the process that started the program, in all its processes
END_S = 5.0  # time for mpiexec to end its processes, s
TAIL = 2000  # number of characters of the output that an error message shows


@dataclass(frozen=True)
class MpiResult:
    """The result of the program.

    Attributes:
        library: name and version of the MPI library.
        iterations: number of iterations.
        checksum: the sum of the state modulo 2^64, which does not depend on the changes.
        stages: the changes, in order.
    """

    library: str
    iterations: int
    checksum: int
    stages: tuple[ReconfigurationStages, ...]


class Events:
    """A cluster whose events lead to the planned sizes: processors become idle, or a job arrives.

    Before each event, there are `iterations` checks.
    """

    def __init__(self, sizes: Sequence[int], iterations: int) -> None:
        self._sizes, self._iterations, self._checks = sizes, iterations, 0

    def __call__(self, pid: int, size: int, sizes: SizeRange) -> Answer:
        """Decide on the next check, as DMR does."""
        step, rest = divmod(self._checks, self._iterations)
        self._checks += 1
        planned = size if rest else self._sizes[step]
        waiting = [size - planned] if planned < size else []
        return check_status(size, sizes, max(0, planned - size), waiting)


def mpiexec(processes: int = 1) -> list[str]:
    """Return the command that starts a number of processes. mpi4py and an MPI library must be installed."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None or find_spec("mpi4py") is None:
        missing = "mpiexec" if found is None else "mpi4py"
        raise TestbedError(f"{missing} is missing", hint=INSTALL)
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return [found, "-n", str(processes), *(OPEN_MPI if "Open MPI" in version else ())]


def compiler() -> str:
    """Return the path of `mpicc`. Raises TestbedError if it, or the C compiler that it calls, is missing."""
    beside = Path(sys.executable).with_name("mpicc")
    found = str(beside) if beside.exists() else shutil.which("mpicc")
    if found is None or shutil.which("cc") is None:
        raise TestbedError("mpicc or cc is missing", hint=f"{INSTALL}, and install a C compiler (gcc)")
    return found


def reconfigure(
    sizes: Sequence[int], state_mib: float, *, iterations: int = 3, plain: bool = True, timeout_s: float = 300.0
) -> MpiResult:
    """Run the program on this machine, through all sizes, and return the stages of each change.

    Args:
        sizes: number of processes at the start, then after each change. The first size must be 1.
        state_mib: size of the state, MiB.
        iterations: number of iterations at each size.
        plain: whether to measure plain spawns of the same numbers of processes too.
        timeout_s: longest run time, s.

    Raises:
        InputError: a parameter is invalid.
        TestbedError: MPI is missing, or the program has failed.
    """
    elements = round(state_mib * 2**20 / ITEM)
    if not sizes or sizes[0] != 1 or min(sizes) < 1:
        raise InputError(f"the sizes {list(sizes)} are invalid", hint="start with 1: mpiexec starts one process")
    if iterations < 1 or elements < 0:
        raise InputError("the iterations and the state must not be negative, and there is at least one iteration")
    command = mpiexec()
    with (
        tempfile.TemporaryDirectory(prefix="tracebed-mpi-") as name,
        ResourceManager(Events(sizes, iterations)) as manager,
    ):
        report, output = Path(name) / "report.json", Path(name) / "output"
        parameters = ProgramParameters(list(sizes), elements, iterations, plain, str(report))
        command += [sys.executable, "-m", MODULE, json.dumps(parameters._asdict())]
        environment = {**os.environ, **LOOPBACK, **ROOT, **manager.variables, MARK: str(os.getpid())}
        printed = run_until(command, environment, output, timeout_s)
        if not report.exists():
            raise TestbedError(
                f"the MPI program has no result: {printed[-TAIL:].strip()}", hint="check the MPI library"
            )
        result = json.loads(report.read_text(encoding="utf-8"))
    if not result["valid"]:
        raise TestbedError("the state of the MPI program is wrong after its changes", hint="check the MPI library")
    stages = tuple(ReconfigurationStages(*values) for values in result["stages"])
    return MpiResult(result["library"], result["iterations"], result["checksum"], stages)


def run_until(command: list[str], environment: dict[str, str], output: Path, timeout_s: float) -> str:
    """Run a command of mpiexec for at most `timeout_s`, and return its output, which is also in the file `output`."""
    with open(output, "wb") as file:
        status = _run(command, environment, file.fileno(), timeout_s)
    printed = output.read_text(encoding="utf-8", errors="replace")
    if status != 0:
        how = f"did not end within {timeout_s:g} s" if status is None else f"has failed with status {status}"
        what = f"the MPI program {how}: {printed[-TAIL:].strip()}"
        raise TestbedError(what, hint="run mpiexec -n 1 with a small program of MPI")
    return printed


def _segments() -> set[Path]:
    """Return the files of MPICH in shared memory."""
    return set(FOLDER.glob("mpich_shm_*"))


def _remove_segments(left: set[Path]) -> None:
    """Remove those of the files `left` that no process uses. Processes that were killed, or spawned, leave theirs."""
    for process in Path("/proc").glob("[0-9]*") if left else ():
        with contextlib.suppress(OSError):  # it has ended, or is of another user
            maps = (process / "maps").read_text()
            left = {path for path in left if str(path) not in maps}
            for link in list((process / "fd").iterdir()):
                with contextlib.suppress(OSError):  # closed meanwhile
                    left.discard(link.readlink())
    for path in left:
        with contextlib.suppress(OSError):
            path.unlink()


def _run(command: list[str], environment: dict[str, str], output: int, timeout_s: float) -> int | None:
    """Run a command in a process group of its own, and return its status; None: it was ended after `timeout_s`."""
    before = _segments()
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.terminate()  # mpiexec ends its processes
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        _remove_segments(_segments() - before)
