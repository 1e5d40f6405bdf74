"""Build hook that compiles the C sources of each folder into one shared library next to its binding.

The libraries are loaded by ctypes and do not use Python's ABI, so one wheel serves every Python of a platform. Without
a C compiler the wheel is pure: benchmarks fall back to NumPy, with a warning at run time, simulations and the reader
of PBS to Python; simulations of evolving jobs and of the cluster of a slurm.conf are missing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = {
    "benchmarks/tracebed/benchmarks/kernels/libtracebed_kernels.so": "-O3",
    "orchestrator/tracebed/orchestrator/simulation/engine/libtracebed_engine.so": "-O2",
    "orchestrator/tracebed/slurm/simulation/engine/libtracebed_slurm.so": "-O3",
    "orchestrator/tracebed/orchestrator/evolving/libtracebed_evolving.so": "-O2",
    "converters/tracebed/converters/formats/tools/libtracebed_pbs.so": "-O2",
}
"""Library -> optimization level of the C sources in its folder. No level changes floating-point results."""


class CompileHook(BuildHookInterface[Any]):
    """Compiler of `LIBRARIES`, each from all `*.c` of its folder."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries; a failure is a warning, never an error."""
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not compiler:
            self.app.display_warning(
                "tracebed: no C compiler found (gcc): benchmarks use the slower NumPy kernel, simulations use Python"
            )
        for name, optimized in LIBRARIES.items():
            library = Path(self.root, name)
            if not (compiler and self._compile(shlex.split(compiler), library, optimized)):
                library.unlink(missing_ok=True)
                continue
            build_data["artifacts"].append(name)
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"

    def _compile(self, compiler: list[str], library: Path, optimized: str) -> bool:
        command = [*compiler, optimized, "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=off", "-o", str(library)]
        command += [str(path) for path in sorted(library.parent.glob("*.c"))] + ["-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            failure = done.returncode and (done.stderr.strip() or f"exit status {done.returncode}")
        except OSError as error:
            failure = str(error)
        if failure:
            self.app.display_warning(f"tracebed: {' '.join(command)} failed, slower without {library.name}: {failure}")
        return not failure
