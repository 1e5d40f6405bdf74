"""The backend for programs that use DLB, the library of BSC (LGPL), where it is installed.

Its functions, flags and results are those of its headers dlb_drom.h, dlb_types.h and dlb_errors.h. With `--drom` alone,
current versions abort a process from which CPUs are taken, so `--lewi` is set as well. OpenMP programs need the OpenMP
runtime of LLVM: that of GNU has no tool interface, and ignores DLB.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Iterable, Mapping
from typing import Final

from tracebed.benchmarks.backends.base import Backend
from tracebed.benchmarks.node_table import bits, cpus_of
from tracebed.benchmarks.ownership import Flags, Result
from tracebed.errors import TestbedError

ARGUMENTS: Final = "DLB_ARGS"
"""Environment variable with the options of DLB."""
MASK_BYTES: Final = 128
"""Size of `cpu_set_t` of the C library, bytes."""
RESULTS: Final = {
    0: Result.SUCCESS,
    1: Result.NOTED,
    2: Result.NO_UPDATE,
    -2: Result.NO_TABLE,  # not attached
    -3: Result.REGISTERED,
    -5: Result.NO_TABLE,
    -6: Result.NO_PROCESS,
    -7: Result.PENDING,
    -8: Result.PERMISSION,
    -9: Result.TIMEOUT,
    -14: Result.FULL,
}
"""Error code of DLB -> result."""
_MASK, _ENVIRONMENT = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)
FUNCTIONS: Final = {
    "DLB_DROM_Attach": (),
    "DLB_DROM_Detach": (),
    "DLB_DROM_GetProcessMask": (ctypes.c_int, _MASK, ctypes.c_int),
    "DLB_DROM_SetProcessMask": (ctypes.c_int, _MASK, ctypes.c_int),
    "DLB_DROM_PreInit": (ctypes.c_int, _MASK, ctypes.c_int, ctypes.POINTER(_ENVIRONMENT)),
    "DLB_DROM_PostFinalize": (ctypes.c_int, ctypes.c_int),
}
"""Function of DLB -> types of its arguments. All return an error code."""


def find_library() -> str | None:
    """Return the name or path of libdlb.so; None: DLB is not installed."""
    return os.environ.get("DLB_LIBRARY") or ctypes.util.find_library("dlb")


def options(key: str) -> str:
    """Return the options of DLB (`DLB_ARGS`) for the programs whose shared memory has the name `key`."""
    return f"--drom --lewi --shm-key={key}"


class DlbBackend(Backend):
    """DLB in the role of an administrator. A process can attach to one key only.

    Args:
        key: name of the shared memory of DLB, for the programs of this administrator only.
    """

    def __init__(self, key: str) -> None:
        """Attach to DLB. Raises TestbedError if DLB is not installed or cannot be used."""
        path = find_library()
        hint = "install DLB (https://pm.bsc.es/dlb), or set DLB_LIBRARY to the path of libdlb.so"
        if path is None:
            raise TestbedError("libdlb.so is not installed", hint=hint)
        self.key = key
        os.environ[ARGUMENTS] = options(key)  # DLB reads its options from the environment
        try:
            self._library = ctypes.CDLL(path)
            for name, types in FUNCTIONS.items():
                self._library[name].argtypes, self._library[name].restype = types, ctypes.c_int
        except (OSError, AttributeError) as error:
            raise TestbedError(f"libdlb.so cannot be used: {error}", hint=hint) from error
        result = self._call("DLB_DROM_Attach")
        if result.error:
            raise TestbedError(f"cannot attach to DLB: {result.name}", where=key, hint="remove its stale shared memory")

    def attach(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> tuple[Result, Mapping[str, str]]:
        """Reserve CPUs for a program (`DLB_DROM_PreInit`)."""
        libc = ctypes.CDLL(None)
        libc.calloc.restype, libc.calloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_size_t)
        variables = ctypes.cast(libc.calloc(1, ctypes.sizeof(ctypes.c_char_p)), _ENVIRONMENT)  # DLB extends it
        result = self._call("DLB_DROM_PreInit", pid, _cpu_set(cpus), int(flags), ctypes.byref(variables))
        found = {ARGUMENTS: options(self.key)}
        index = 0
        while (variable := variables[index]) is not None:
            name, _, value = os.fsdecode(variable).partition("=")
            found[name] = value
            index += 1
        return result, {} if result.error else found

    def set(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> Result:
        """Change the CPUs of a program (`DLB_DROM_SetProcessMask`)."""
        return self._call("DLB_DROM_SetProcessMask", pid, _cpu_set(cpus), int(flags))

    def get(self, pid: int) -> tuple[Result, tuple[int, ...]]:
        """Return the CPUs of a program (`DLB_DROM_GetProcessMask`)."""
        mask = _cpu_set(())
        result = self._call("DLB_DROM_GetProcessMask", pid, mask, 0)
        return result, () if result.error else cpus_of(int.from_bytes(bytes(mask), "little"))

    def detach(self, pid: int, flags: Flags = Flags.NONE) -> Result:
        """Release the CPUs of a program that has ended (`DLB_DROM_PostFinalize`)."""
        return self._call("DLB_DROM_PostFinalize", pid, int(flags))

    def close(self) -> None:
        """Detach from DLB."""
        self._call("DLB_DROM_Detach")

    def _call(self, name: str, *arguments: object) -> Result:
        """Call a function of DLB. Raises TestbedError if its error code has no counterpart among the results."""
        code = self._library[name](*arguments)
        if code not in RESULTS:
            raise TestbedError(f"{name} returned the error code {code}")
        return RESULTS[code]


def _cpu_set(cpus: Iterable[int]) -> ctypes.Array[ctypes.c_char]:
    """Return CPUs as a `cpu_set_t`. Raises OverflowError for CPU numbers that it cannot hold."""
    return ctypes.create_string_buffer(bits(cpus).to_bytes(MASK_BYTES, "little"), MASK_BYTES)
