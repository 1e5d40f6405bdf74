"""Build hook: compiles the C kernels into one shared library beside their binding, if there is a compiler.

The library has no Python ABI (it is reached by ctypes), so one wheel serves every Python of a platform.
Without a compiler the wheel is pure and the binding falls back to NumPy, which it says at run time.
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

KERNELS = "benchmarks/tracebed/benchmarks/kernels"
LIBRARY = "libtracebed_kernels.so"


class KernelsHook(BuildHookInterface[Any]):
    """Compiles `kernels/*.c` into `kernels/libtracebed_kernels.so`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a failure is a warning, never an error."""
        folder = Path(self.root, KERNELS)
        library = folder / LIBRARY
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not compiler:
            library.unlink(missing_ok=True)
            self.app.display_warning("tracebed: no C compiler (gcc): the benchmarks will use their slower NumPy kernel")
            return
        command = [*shlex.split(compiler), "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-o", str(library)]
        command += [str(path) for path in sorted(folder.glob("*.c"))] + ["-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            failure = done.returncode and (done.stderr.strip() or f"exit status {done.returncode}")
        except OSError as error:
            failure = str(error)
        if failure:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"tracebed: {' '.join(command)} failed, NumPy kernel instead: {failure}")
            return
        build_data["artifacts"].append(f"{KERNELS}/{LIBRARY}")
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
