"""Copies of data sets: files that are found in a local copy, verified, converted, and put beside an experiment file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from tracebed.converters.formats.tools.files import Input
from tracebed.errors import InputError
from tracebed.outputs import OutputKind
from tracebed.validation.board.conversions import CONVERSIONS
from tracebed.validation.board.datasets import Dataset, dataset

SUITE = "suite.yaml"
ORIGIN = "ORIGIN.txt"
"""File with the source, the licence and the citation of a copy."""
TITLE = "Data set of real runs: "
COPY = OutputKind("a copy of a data set", re.escape(TITLE.encode()), parts=(ORIGIN,))
"""Folder of a copy."""


def fetch(name: str, folder: Path, *, source: Path | None = None, replace: bool = False) -> Path:
    """Copy a data set to `folder`, and return the experiment file, or the folder if the data are no cases.

    Args:
        name: name of the data set.
        folder: the new folder.
        source: folder of a local copy, such as a clone of the repository. The files may be in folders inside of it,
            and compressed with gzip.
        replace: whether an earlier copy of a data set in `folder` is replaced.

    Raises:
        InputError: there is no such data set, no copy is given, a file is missing or has another hash, or `folder` has
            other content or cannot be written.
    """
    wanted = dataset(name)
    COPY.check(folder, replace=replace)
    if source is None:
        hint = f"get {wanted.source} at commit {wanted.commit}, and give its folder: --from FOLDER"
        raise InputError(f"tracebed does not download data sets, and no copy of {name} is given", hint=hint)
    found = _verified(wanted, source)
    with COPY.folder(folder, COPY.parts, replace=replace) as room:
        for file, content in found.items():
            (room / file).write_bytes(content)
        for file, conversion in wanted.converted.items():
            (room / file).write_bytes(CONVERSIONS[conversion](found))
        (room / ORIGIN).write_text(_origin(wanted), encoding="utf-8")
        if wanted.suite:
            (room / SUITE).write_text(wanted.suite, encoding="utf-8")
    return folder / SUITE if wanted.suite else folder


def _verified(wanted: Dataset, source: Path) -> Mapping[str, bytes]:
    """Return the content of each file of a data set.

    Raises:
        InputError: a file is missing, or no file of its name has the hash.
    """
    if not source.is_dir():
        raise InputError("no such folder", where=str(source), hint="give the folder of a copy: --from FOLDER")
    places: dict[str, list[Path]] = {}
    for path in sorted(source.rglob("*")):
        if (name := path.name.removesuffix(".gz")) in wanted.files and path.is_file():
            places.setdefault(name, []).append(path)
    hint = f"the files are those of {wanted.source} at commit {wanted.commit}"
    if missing := [name for name in wanted.files if name not in places]:
        what = f"{len(missing)} of {len(wanted.files)} files of {wanted.name} are missing: {missing[0]}"
        raise InputError(what, where=str(source), hint=hint)
    contents: dict[str, bytes] = {}
    for name, expected in wanted.files.items():
        for path in places[name]:
            content = Input.at(path).data
            if hashlib.sha256(content).hexdigest() == expected:
                contents[name] = content
                break
        else:
            raise InputError(
                f"is not the file of {wanted.name}: another SHA-256", where=str(places[name][0]), hint=hint
            )
    return contents


def _origin(wanted: Dataset) -> str:
    """Return the text of the file `ORIGIN`."""
    licence = wanted.licence or "none stated: use the data, and do not publish the copy"
    lines = [
        *(
            f"{TITLE}{wanted.title}",
            "",
            f"source: {wanted.source}, commit {wanted.commit}",
            f"institution: {wanted.institution}",
        ),
        *(f"licence: {licence}", f"cite: {wanted.citation}", *([f"note: {wanted.note}"] if wanted.note else [])),
    ]
    return "\n".join(lines) + "\n"
