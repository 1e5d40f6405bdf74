"""Copies of data sets: files of a local copy, or downloaded; verified, converted, and put beside an experiment file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tracebed.converters.formats.tools.files import Input
from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing_folder
from tracebed.studies.board.conversions import CONVERSIONS
from tracebed.studies.board.datasets import Dataset, dataset
from tracebed.studies.board.downloading import LOCAL, TIMEOUT_S, download

SUITE = "suite.yaml"
SUFFIXES = (".csv", ".csv.gz", ".conf")
ORIGIN = "ORIGIN.txt"
"""File with the source, the licence and the citation of a copy."""
LARGEST = 2**26
"""Largest size of a file that is looked at in a copy, or downloaded, bytes. The files of the data sets are smaller."""


def fetch(name: str, folder: Path, source: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> Path:
    """Copy a data set to `folder`, which must not exist or be empty.

    Return the experiment file, or the folder if the data are no cases.

    Args:
        folder: the new folder.
        source: folder of a local copy, such as a clone of the repository. The files may have any name, be in folders
            inside of it, and be compressed with gzip. None: the files are downloaded from their addresses.
        timeout_s: longest time for the download of one file, s.

    Raises:
        InputError: there is no such data set, no file has the hash of a file of the data set, a file cannot be
            downloaded or has no known address, or `folder` has content or cannot be written.
    """
    wanted = dataset(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("exists and is not empty", where=str(folder), hint="name another folder with -o")
    found = _downloaded(wanted, timeout_s) if source is None else _verified(wanted, source)
    with replacing_folder(folder, (ORIGIN, SUITE)) as room:
        for file, content in found.items():
            (room / file).write_bytes(content)
        for file, conversion in wanted.converted.items():
            (room / file).write_bytes(CONVERSIONS[conversion](found))
        (room / ORIGIN).write_text(_origin(wanted), encoding="utf-8")
        if wanted.suite:
            (room / SUITE).write_text(wanted.suite, encoding="utf-8")
    return folder / SUITE if wanted.suite else folder


def _downloaded(wanted: Dataset, timeout_s: float) -> Mapping[str, bytes]:
    """Return the content of each file of a data set from its address.

    Raises:
        InputError: the address of a file is unknown, a file cannot be downloaded, or has another hash.
    """
    addresses = {file: wanted.address(file) for file in wanted.files}
    if unknown := [file for file, address in addresses.items() if address is None]:
        hint = f"get {wanted.source} at commit {wanted.commit}, and give its folder: --from FOLDER"
        raise InputError(f"the address of {unknown[0]} is unknown, so {wanted.name} cannot be downloaded", hint=hint)
    found: dict[str, bytes] = {}
    for file, address in addresses.items():
        assert address is not None
        content = download(address, largest=LARGEST, timeout_s=timeout_s)
        if (digest := hashlib.sha256(content).hexdigest()) != wanted.files[file]:
            what = f"is not the file {file} of {wanted.name}: its SHA-256 is {digest[:12]}..., not "
            raise InputError(what + f"{wanted.files[file][:12]}...", where=address, hint=LOCAL)
        found[file] = content
    return found


def fetch_from(name: str, folder: Path, sources: Sequence[Path]) -> Path:
    """Copy a data set from the first of several local copies that has its files, as `fetch`.

    Raises:
        InputError: as `fetch`; that of the first copy, if none has the files.
    """
    if not sources:
        return fetch(name, folder, None)
    errors = []
    for source in sources:
        try:
            return fetch(name, folder, source)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def _verified(wanted: Dataset, source: Path) -> Mapping[str, bytes]:
    """Return the content of each file of a data set. The hash identifies a file, whatever its name in the copy.

    Raises:
        InputError: no file has the hash of one of the files.
    """
    if not source.is_dir():
        raise InputError("no such folder", where=str(source), hint="give the folder of a copy: --from FOLDER")
    wanted_hashes = set(wanted.files.values())
    contents: dict[str, bytes] = {}
    changed: list[Path] = []
    for path in _candidates(source):
        content = _content(path)
        found = hashlib.sha256(content).hexdigest()
        if found in wanted_hashes:
            contents[found] = content
        elif path.name.removesuffix(".gz") in wanted.files:
            changed.append(path)
        if contents.keys() == wanted_hashes:
            break
    if missing := [name for name, digest in wanted.files.items() if digest not in contents]:
        what = f"{len(missing)} of {len(wanted.files)} files of {wanted.name} are missing: no file has the SHA-256 of "
        what += f"{missing[0]}" + (f"; {changed[0]} is another file" if changed else "")
        raise InputError(f"{what}; {_version(wanted)}", where=str(source), hint=_checkout(wanted, source))
    return {name: contents[digest] for name, digest in wanted.files.items()}


def _version(wanted: Dataset) -> str:
    """Return which version of its repository has the files of a data set; a clone usually has another one."""
    at = f"commit {wanted.commit}" if wanted.commit else "an unknown commit"
    return f"the files are those of {wanted.source} at {at}"


def _checkout(wanted: Dataset, source: Path) -> str:
    """Return how a local copy gets the files of a data set."""
    if not wanted.commit:
        return "give the folder of another copy: --from FOLDER"
    clone = next((path for path in (source, *source.resolve().parents) if (path / ".git").exists()), None)
    return f"git -C {clone or 'CLONE'} checkout {wanted.commit}"


def _candidates(folder: Path) -> Iterator[Path]:
    """Yield the tables and settings in a folder and in the folders inside of it that may be files of a data set."""
    for path in sorted(folder.rglob("*.c*")):
        if path.name.endswith(SUFFIXES) and path.is_file() and 0 < path.stat().st_size <= LARGEST:
            yield path


def _content(path: Path) -> bytes:
    """Return the uncompressed content of a file; empty if the file cannot be read."""
    try:
        return Input.at(path).data
    except (InputError, OSError):
        return b""


def _origin(wanted: Dataset) -> str:
    """Return the text of the file `ORIGIN`."""
    licence = wanted.licence or "none stated: use the data, and do not publish the copy"
    lines = [
        *(
            wanted.title,
            "",
            f"source: {wanted.source}, commit {wanted.commit}",
            f"institution: {wanted.institution}",
        ),
        *(f"licence: {licence}", f"cite: {wanted.citation}", *([f"note: {wanted.note}"] if wanted.note else [])),
    ]
    return "\n".join(lines) + "\n"
