"""Entries of the board: the simulators that predict a data set, by a file of a few lines.

    grid5000-2016-02:
      mine: {command: "my-simulator {workload} --nodes {nodes} --output {output}.csv", from: csv}

The keys of a simulator are those of an experiment file. Relative paths refer to the folder of the file of the entries,
those of `conf`, the configuration of the scheduler, to the folder of the data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, RootModel

from tracebed.ground.errors import InputError
from tracebed.ground.registry import unknown
from tracebed.ground.yaml_file import YamlFile
from tracebed.studies.board.datasets import datasets
from tracebed.validation.experiments.experiment_schema import Name, SimulatorSpec
from tracebed.validation.experiments.simulators import SuiteSimulator, simulator_of

SHIPPED = files(__package__) / "entries.yaml"
EXAMPLE = files(__package__) / "enter.yaml"  # an entry of five lines, for the pages
EVERY = "*"  # name in place of a data set: each of them
HINT = 'write DATASET: {NAME: {command: "...", from: csv}}'


class _Entries(RootModel[dict[str, dict[Name, Annotated[SimulatorSpec, BeforeValidator(lambda raw: raw or {})]]]]):
    """The content of a file of entries."""


@dataclass(frozen=True)
class EntryFile:
    """A file of entries."""

    source: YamlFile
    entries: dict[str, dict[str, SimulatorSpec]]  # data set, or `EVERY` -> name -> simulator

    @property
    def folder(self) -> Path:
        """Folder of relative paths."""
        return Path(self.source.where).absolute().parent

    def predicts(self, dataset: str) -> bool:
        """Return whether the file has an entry on a data set."""
        return any(self.entries.get(key) for key in (EVERY, dataset))

    def simulators(self, dataset: str, copy: Path) -> Iterator[SuiteSimulator]:
        """Yield the simulators that predict a data set, whose folder is `copy`. An error has the line of its entry."""
        for key in (EVERY, dataset):
            for name, spec in self.entries.get(key, {}).items():
                names = [spec.conf] if isinstance(spec.conf, str) else spec.conf
                conf = tuple(str(copy.absolute() / each) for each in names)
                try:
                    yield simulator_of(name, spec.model_copy(update={"conf": conf}), self.folder)
                except InputError as error:
                    where = f"{error.where}: " if error.where else ""
                    raise self.source.error(f"{where}{error.what}", key, name, hint=error.hint) from error


def load_entries(paths: Sequence[Path]) -> list[EntryFile]:
    """Return the entries of tracebed and those of files.

    Raises:
        InputError: a file cannot be read, or a key, a value or a data set is unknown. The error has the line.
    """
    with as_file(SHIPPED) as shipped:
        return [_read(path) for path in (shipped, *paths)]


def _read(path: Path) -> EntryFile:
    source = YamlFile.read(path, "entries of the board", hint=HINT, unreadable="give a YAML file")
    found = source.checked(_Entries).root
    for name in found:
        if name not in (EVERY, *datasets()):
            error = unknown("data set", name, [EVERY, *datasets()])
            raise source.error(error.what, name, hint=error.hint)
    return EntryFile(source, found)
