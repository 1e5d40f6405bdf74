"""The data sets of `datasets.yaml`: what they are, where they are, under which licence, and which files they have."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from tracebed.ground.registry import unknown

INDEX = files(__package__) / "datasets.yaml"
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Dataset(BaseModel):
    """A data set of real runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    """What was run where, in one line."""
    institution: str
    source: str
    """Address of the repository."""
    commit: str
    """Commit of the repository that has the files."""
    addresses: dict[str, str] = {}
    """Pattern of names of files -> address of the file. `{stem}` and `{rest}` in an address are the parts of the name
    before and after its first dot. Empty: no address is known."""
    licence: str
    """The licence that the repository states; empty: none is stated."""
    citation: str
    """Publication of the data."""
    note: str = ""
    """What is peculiar to the data."""
    files: dict[str, Hash]
    """Name of a file -> SHA-256 of its content, uncompressed."""
    converted: dict[str, str] = {}
    """Name of a table that is made of the files -> name of the conversion (`conversions`)."""
    suite: str = ""
    """Experiment file for `tracebed validate` in the folder of the files; empty: the data are no cases yet."""

    def address(self, file: str) -> str | None:
        """Return the address of a file, or None if it is unknown."""
        stem, _, rest = file.partition(".")
        found = (address for pattern, address in self.addresses.items() if fnmatchcase(file, pattern))
        return next((address.format(stem=stem, rest=rest) for address in found), None)


@cache
def datasets() -> dict[str, Dataset]:
    """Return the data sets by name."""
    content = yaml.safe_load(INDEX.read_text(encoding="utf-8"))
    return {name: Dataset(name=name, **facts) for name, facts in content.items()}


def dataset(name: str) -> Dataset:
    """Return the data set `name`.

    Raises:
        InputError: there is no such data set.
    """
    if name not in datasets():
        raise unknown("data set", name, list(datasets()))
    return datasets()[name]
