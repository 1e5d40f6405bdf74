"""Python binding of the shared library compiled from engine.c.

The structures and enumerations are declared only in base.h. The library exports a description of them, from which
this module creates the ctypes structures.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPECODES = {"double": "d", "int64_t": "q", "int32_t": "i", "uint8_t": "B", "uint64_t": "Q"}
"""Element type of an array in base.h -> type code in `array` and NumPy."""
SCALARS = {"double": ctypes.c_double, "int64_t": ctypes.c_int64}


class DescriptionError(Exception):
    """The library belongs to another version of tracebed."""


class Library:
    """The functions, structures and enumerations of the compiled engine.

    Args:
        path: the shared library.
        names: the names that each enumeration must have, for example `{"over_limit": {"KILL", "NOW"}}`.

    Raises:
        OSError: the library at `path` is missing, or was built for another machine.
        DescriptionError: the library belongs to another version of tracebed.
    """

    def __init__(self, path: Path, names: Mapping[str, set[str]]) -> None:
        """Load the library and bind its functions."""
        functions = ctypes.CDLL(str(path))
        try:
            self._bind(functions)
        except (AttributeError, KeyError, ValueError) as error:
            raise DescriptionError(f"{path} does not describe the engine: {error}") from error
        for what, expected in names.items():
            if (described := set(self.numbers.get(what, {}))) != expected:
                raise DescriptionError(f"{path}: {what} has {sorted(described)}, expected {sorted(expected)}")

    def _bind(self, functions: Any) -> None:
        functions.tracebed_engine_description.restype = ctypes.c_char_p
        lines = (line.partition(":") for line in functions.tracebed_engine_description().decode().splitlines())
        lists = {name: [item.strip() for item in items.split(";")[:-1]] for name, _, items in lines}
        self._setup, self.parameters, self._results = (
            fields_of(lists.pop(name)) for name in ("setup", "parameters", "results")
        )
        self._fields = self._setup | self.parameters
        self.numbers = {what: {name: number for number, name in enumerate(names)} for what, names in lists.items()}
        """Enumeration in base.h -> name -> number."""
        self._setup_type, self._results_type = structure("Setup", self._fields), structure("Results", self._results)
        for kind, size in (
            (self._setup_type, functions.tracebed_engine_setup_size),
            (self._results_type, functions.tracebed_engine_results_size),
        ):
            size.restype = ctypes.c_int64
            if size() != ctypes.sizeof(kind):
                raise ValueError(f"{kind.__name__} has {size()} bytes in C, {ctypes.sizeof(kind)} in Python")
        self.new = functions.tracebed_engine_new
        self.new.argtypes, self.new.restype = [ctypes.POINTER(self._setup_type)], ctypes.c_void_p
        self.finish = functions.tracebed_engine_finish
        self.finish.argtypes = [ctypes.c_void_p]
        self.give = functions.tracebed_engine_give
        self.give.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self.free_array = functions.tracebed_engine_free_array
        self.free_array.argtypes, self.free_array.restype = [ctypes.c_void_p], None
        self.free = functions.tracebed_engine_free
        self.free.argtypes, self.free.restype = [ctypes.c_void_p], None
        self.advance = functions.tracebed_engine_advance
        self.advance.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_double]
        self.last = functions.tracebed_engine_last
        self.last.argtypes, self.last.restype = [ctypes.c_void_p], ctypes.c_double
        self.submitted = functions.tracebed_engine_submitted
        self.submitted.argtypes, self.submitted.restype = [ctypes.c_void_p], ctypes.c_int64
        self._read = functions.tracebed_engine_results
        self._read.argtypes, self._read.restype = [ctypes.c_void_p, ctypes.POINTER(self._results_type)], None

    def setup(self, values: Mapping[str, Any]) -> ctypes.Structure:
        """Return a `struct setup` with `values`, one for each field: a number, or a sequence for an array (None: null).

        Parameters of policies may be missing in `values`; they are 0. Sequences are converted to arrays of the types in
        base.h. The structure keeps references to these arrays.

        Raises:
            ValueError: a field is missing in `values`, or a field is unknown.
        """
        if differing := (values.keys() - self.parameters.keys()) ^ self._setup.keys():
            raise ValueError(f"struct setup has other fields ({', '.join(sorted(differing))}): install tracebed again")
        arrays: dict[str, Any] = {}
        made: dict[tuple[int, str], Any] = {}  # a column that is given twice, such as the sizes of rigid jobs, is one
        for name, (typecode, is_array) in self._fields.items():
            if is_array and (given := values.get(name)) is not None:
                if (key := (id(given), typecode)) not in made:
                    made[key] = np.ascontiguousarray(given, dtype=typecode)
                arrays[name] = made[key]
        setup = self._setup_type(**{**values, **{name: column.ctypes.data for name, column in arrays.items()}})
        setup.arrays = arrays
        return setup

    def results(self, engine: int) -> Results:
        """Return the results of an engine that is done, which loses what is read. They are valid until `free`.

        Raises:
            MemoryError: the engine cannot allocate memory.
        """
        structure = self._results_type()
        if not self.finish(engine):
            raise MemoryError("the compiled engine cannot allocate memory")
        self._read(engine, ctypes.byref(structure))
        return Results(structure, self._results, lambda address: bool(self.give(engine, address)), self.free_array)


class Memory:
    """Memory of an array that was made in C, with which NumPy makes an array of it."""

    def __init__(self, address: int, count: int, typecode: str, free: Callable[[int], None]) -> None:
        """Take over `count` elements at an address. `free` frees them."""
        self._address, self._free = address, free
        dtype = np.dtype(typecode).str
        self.__array_interface__ = {"data": (address, False), "shape": (count,), "typestr": dtype, "version": 3}

    def __del__(self) -> None:
        self._free(self._address)


class Results:
    """A `struct results`: numbers and arrays by name."""

    def __init__(
        self,
        structure: ctypes.Structure,
        fields: Mapping[str, tuple[str, bool]],
        give: Callable[[int], bool],
        free: Callable[[int], None],
    ) -> None:
        """Wrap the structure, whose fields are described by `fields`.

        `give` hands over the array at an address, and returns whether it did. `free` frees such an array.
        """
        self._structure, self._fields, self._give, self._free = structure, fields, give, free

    def number(self, name: str) -> int:
        """Return a number."""
        return int(getattr(self._structure, name))

    def array(self, name: str, count: int) -> array[Any]:
        """Return a copy of the first `count` elements of an array, which can be read once."""
        values: array[Any] = array(self._fields[name][0])
        if count:
            size, address = count * values.itemsize, getattr(self._structure, name)
            values.frombytes((ctypes.c_char * size).from_address(address))
            if self._give(address):
                self._free(address)
        return values

    def taken(self, name: str, count: int) -> NDArray[Any]:
        """Return the first `count` elements of an array, which is no longer of the engine, without a copy."""
        address = getattr(self._structure, name)
        given = self._give(address)
        assert given, name
        return np.asarray(Memory(address, count, self._fields[name][0], self._free))


def fields_of(items: list[str]) -> dict[str, tuple[str, bool]]:
    """Return name -> (type code, is an array) of fields such as `int64_t jobs` and `const double * end`."""
    fields = {}
    for item in items:
        kind, name = item.rsplit(maxsplit=1)
        element = kind.removeprefix("const ").removesuffix(" *")
        fields[name] = (TYPECODES[element], kind != element)
    return fields


def structure(name: str, fields: Mapping[str, tuple[str, bool]]) -> type[ctypes.Structure]:
    """Return a ctypes structure with these fields. Arrays are pointers."""
    scalars = {TYPECODES[element]: kind for element, kind in SCALARS.items()}
    layout = [(field, ctypes.c_void_p if is_array else scalars[code]) for field, (code, is_array) in fields.items()]
    return type(name, (ctypes.Structure,), {"_fields_": layout})
