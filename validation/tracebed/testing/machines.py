"""The check of sources of machines."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import NoReturn

from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine
from tracebed.machine.sources import SOURCES, MachineSource, recorded_machine


def check_machine(source: str | MachineSource, file: Path | str, *, cuts: int = 50) -> None:
    """Check the invariants of a source of machines on a file.

    The invariants are:

    * The source recognizes the file. No other installed source does, except sources that are asked `last`.
    * The source reads a machine, and the same one a second time.
    * `tracebed.machine.sources.recorded_machine` reads the machine in the JSON values of its `to_json`.
    * A truncated copy of the file that is recognized is read, or refused with a one-line InputError that names it.

    Args:
        source: name of an installed source, or a source. A source with a class of machines of its own is installed.
        file: a file of the source.
        cuts: number of truncated copies, of 0 bytes and of evenly distributed sizes.

    Raises:
        AssertionError: an invariant is violated; the message has the invariant.
        InputError: `source` is not a source of machines, or the file does not exist or is invalid.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from tracebed.testing import check_machine
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "machine.yaml")
        ...     _ = path.write_text("classes:\\n- {count: 4, cores: 16}\\n")
        ...     check_machine("yaml", path)
    """
    path, name = Path(file), source if isinstance(source, str) else source.title
    chosen = SOURCES.load(source) if isinstance(source, str) else source
    if not isinstance(chosen, MachineSource):
        raise InputError(f"{name} is not a source of machines", hint="a source is a MachineSource")
    if not path.is_file():
        raise InputError("there is no such file", where=str(path), hint="give a file of the source")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _require(name, chosen.recognizes(path) is True, f"does not recognize {path}")
        others = [
            other for other, its in SOURCES.all() if its is not chosen and not its.last and its.recognizes(path) is True
        ]
        _require(name, not others, f"{path} is recognized by other sources, too: {', '.join(others)}")
        machine = chosen.read(path)
        _require(name, isinstance(machine, Machine), f"`read` returns {type(machine).__name__}, not a Machine")
        _check_recorded(name, machine)
        _require(name, chosen.read(path).digest == machine.digest, "the machine is another one when it is read again")
        _check_truncated(name, chosen, path, cuts)


def _check_recorded(name: str, machine: Machine) -> None:
    """Check that a run that records the machine can be read."""
    try:
        values = machine.to_json()
        again = recorded_machine(json.loads(json.dumps(values)))
    except (InputError, TypeError, ValueError) as error:
        _fail(name, f"the machine cannot be read from its JSON values: {error}")
    same = (again.nodes, again.to_json(), again.executor) == (machine.nodes, values, machine.executor)
    _require(name, same, f"the JSON values of {type(machine).__name__} give another machine, {type(again).__name__}")


def _check_truncated(name: str, chosen: MachineSource, path: Path, cuts: int) -> None:
    content = path.read_bytes()
    with tempfile.TemporaryDirectory(prefix="tracebed-") as folder:
        copy = Path(folder, path.name)
        for size in sorted({len(content) * cut // cuts for cut in range(cuts)}):
            copy.write_bytes(content[:size])
            case = f"{path} without all but its first {size:,} bytes"
            try:
                if chosen.recognizes(copy):
                    chosen.read(copy)
            except InputError as error:
                _require(name, str(copy) in str(error.where), f"{case}: the error does not name the file: {error}")
                _require(name, "\n" not in str(error), f"{case}: the message is not one line: {error}")
            except Exception as error:
                what = f"{case} raises {type(error).__name__}, not InputError: {error}"
                raise AssertionError(f"source {name}: {what}") from error


def _require(name: str, holds: object, text: str) -> None:
    if not holds:
        _fail(name, text)


def _fail(name: str, text: str) -> NoReturn:
    raise AssertionError(f"source {name}: {text}")
