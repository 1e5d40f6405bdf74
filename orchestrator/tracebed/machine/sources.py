"""Sources of machines: readers of files, from entry points of the group `tracebed.machines`.

A source is a module with a `MachineSource` and one line in `pyproject.toml`, in tracebed or in another package:

    [project.entry-points."tracebed.machines"]
    mine = "my_package.mine:SOURCE"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracebed.converters.formats.reading import read_workload, recognized
from tracebed.converters.formats.tools.files import Input
from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import checked
from tracebed.ground.input_files import read_text
from tracebed.ground.registry import Registry
from tracebed.machine.machine import HINT, Machine


@dataclass(frozen=True)
class MachineSource:
    """A kind of file that describes a machine."""

    title: str
    """What the file is, in a few words."""
    recognizes: Callable[[Path], bool]
    """Return whether a file is of this kind, by its name or its first lines."""
    read: Callable[..., Machine]
    """Read the file, or the files if a machine has `several`. Raises InputError if one is invalid."""
    several: bool = False
    """Whether a machine may have several files."""
    last: bool = False
    """Whether other sources are asked first, because this one recognizes their files, too."""
    machine: type[Machine] = Machine
    """The class of its machines, which reads the JSON values in which runs record them."""


SOURCES: Registry[MachineSource] = Registry("tracebed.machines", "source of machines", MachineSource)


def read_machine(file: Path | str, *more: Path | str) -> Machine:
    """Return the machine that a file describes. Its content says of which installed source it is.

    Args:
        file: the file, or the name of an inventory that tracebed ships.
        more: further files of the machine, such as what Slurm keeps in its database.

    Raises:
        InputError: the file does not exist, no source recognizes it, or it is invalid.

    Example:
        >>> [node.name for node in read_machine("emulated-4").nodes]
        ['n1', 'n2', 'n3', 'n4']
    """
    path = Path(file)
    sources = sorted((source for _, source in SOURCES.all()), key=lambda source: source.last)
    source = next((source for source in sources if source.recognizes(path)), None)
    if source is None:
        what = "does not describe a machine" if path.exists() else "there is no such file, and no such inventory"
        raise InputError(what, where=str(path), hint=f"give {', '.join(source.title for source in sources)}")
    if more and not source.several:
        raise InputError("the machine has one file", where=str(more[0]), hint=f"leave it out: {path} is {source.title}")
    try:
        read = source.read(path, *map(Path, more))
        machine: Machine = checked(read, Machine, f"the reader of {source.title}", source.read)
        return machine
    except InputError as error:
        if error.where and not source.last:
            raise
        hint = error.hint
        if source.last and path.is_file():
            others = ", ".join(other.title for other in sources if not other.last)
            hint = f"{hint or 'correct the file'}; nor is it one of these: {others}"
        raise InputError(error.what, where=error.where or str(path), hint=hint) from error


def recorded_machine(raw: Any, where: str = "machine") -> Machine:
    """Return the machine in the JSON values in which a run records it (`Machine.to_json`). A class of machines of a
    source of its own has the key `source`.

    Raises:
        InputError: the source is not installed, or a value is missing or invalid.
    """
    source = raw.get("source", "") if isinstance(raw, dict) else ""
    kind = SOURCES.load(str(source)).machine if source else Machine
    return kind.from_json(raw, where)


def has_line(path: Path, pattern: str) -> bool:
    """Return whether the beginning of a text file matches a regular expression, in any case."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        text = file.read(2**16).decode("utf-8", "replace")
    return re.search(pattern, text, re.MULTILINE | re.IGNORECASE) is not None


def _of_yaml(path: Path) -> Machine:
    from tracebed.ground.yaml_file import YamlFile  # imports pydantic, which is slow

    return Machine.from_json(YamlFile.parse(read_text(path, "machine", hint="check the path"), str(path), hint=HINT))


YAML = MachineSource(
    "YAML or JSON with classes of nodes", lambda path: has_line(path, r"^\W{0,9}classes\W{0,2}:"), _of_yaml
)
"""The fields of `Machine` as keys."""


def _of_platform(path: Path) -> Machine:
    from tracebed.machine.simgrid import classes_of

    return Machine(classes=classes_of(read_text(path, "platform", hint="check the path"), str(path)))


PLATFORM = MachineSource("a platform of ElastiSim or Batsim", lambda path: has_line(path, r"<platform\b"), _of_platform)
"""Platforms of SimGrid, whose nodes have one core."""


def _is_workload(path: Path) -> bool:
    return path.is_dir() or (path.is_file() and recognized(Input.at(path)) is not None)


WORKLOAD = MachineSource(
    "a workload, of whose system the size is known",
    _is_workload,
    lambda path: Machine.of_system(read_workload(path).provenance.system),
)
"""The system of a workload."""
