"""Programs that follow the table of CPUs of their node without a change of their code.

A C library, which the loader adds to a program, polls at the parallel regions of OpenMP and in calls of MPI, and binds
the threads of the program (`follower.c`). It is compiled at its first use, with the compiler of the machine.

    library = build(folder)
    result, prepared = administrator.prepare(os.getpid(), cpus)          # of tracebed.benchmarks.drom
    subprocess.run(program, env=os.environ | prepared | variables(library))
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tracebed.ground.errors import TestbedError
from tracebed.ground.files import replacing

SOURCE: Final = Path(__file__).with_name("follower.c")
INCLUDE: Final = SOURCE.parents[1] / "include"
"""Headers for programs (`tracebed_malleable.h`) and for schedulers (`tracebed_administrator.h`) in C."""
NAME: Final = "libtracebed_follower.so"
THREAD: Final = "TRACEBED_DROM_THREAD"
"""Environment variable with the pause between two polls of a thread of the library, ms."""

AFFINITY: Final = "TRACEBED_DROM_AFFINITY"
"""Environment variable of a program without a table, whose threads are bound from outside: its parallel regions have as
many threads as it has CPUs."""


def build(folder: Path) -> Path:
    """Return the library in `folder`, compiled unless it is newer than its sources.

    Raises:
        TestbedError: there is no C compiler, or it has failed.
        InputError: the folder is missing or not writable.
    """
    library, sources = folder / NAME, [SOURCE, *INCLUDE.glob("*.h")]
    if library.exists() and library.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return library
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "cc"]
    with replacing(library) as file:  # another process may use an earlier one
        command = [*compiler, "-O2", "-std=gnu11", "-fPIC", "-shared", "-o", file.name, str(SOURCE)]
        try:
            done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True, check=False)
        except OSError as error:
            what = f"the library for unmodified programs cannot be compiled: {error.strerror}"
            raise TestbedError(what, hint="install a C compiler (gcc)") from error
        if done.returncode:
            what = f"the library for unmodified programs cannot be compiled: {done.stderr.strip()[-500:]}"
            raise TestbedError(what, hint="set CC to a C compiler for this machine")
    return library


def variables(library: Path, *, pause_ms: int = 0) -> Mapping[str, str]:
    """Return the environment variables that add the library to a program.

    Args:
        library: the library of `build`.
        pause_ms: pause between two polls of a thread of the library, ms; 0: no such thread. It is for programs that use
            neither OpenMP nor MPI.
    """
    return {"LD_PRELOAD": str(library), **({THREAD: str(pause_ms)} if pause_ms else {})}
