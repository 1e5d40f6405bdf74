"""The wheel of the installed tracebed, made from its installed files, for nodes without a package index.

The wheel is the only file that a node needs: agents import nothing but tracebed and the standard library. Equal files
give equal wheels, byte by byte, so the SHA-256 of the wheel identifies what is installed on a node.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import sysconfig
import zipfile
from pathlib import Path

from tracebed.ground.errors import TestbedError
from tracebed.ground.files import replacing
from tracebed.ground.version import version

LIBRARY = ".so"
EPOCH = (1980, 1, 1, 0, 0, 0)  # date of all files in a wheel: the first that a zip file can hold
# The files of the installed metadata that belong to the wheel; the others describe this installation.
METADATA = ("METADATA", "entry_points.txt", "licenses/")


def wheel(folder: Path, platform: str | None = None) -> Path:
    """Write the wheel of the installed tracebed into `folder`, and return its path.

    `platform` is one of `sysconfig.get_platform()` (`linux-x86_64`); None: this one. The wheel for another platform
    contains no compiled libraries.
    """
    here = sysconfig.get_platform()
    files = _installed()
    if platform not in (None, here):
        files = {name: content for name, content in files.items() if not name.endswith(LIBRARY)}
    compiled = any(name.endswith(LIBRARY) for name in files)
    tag = f"py3-none-{here.replace('-', '_').replace('.', '_')}" if compiled else "py3-none-any"
    stem = f"tracebed-{version()}"
    files[f"{stem}.dist-info/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tracebed {version()}\n"
        f"Root-Is-Purelib: {str(not compiled).lower()}\nTag: {tag}\n"
    ).encode()
    files[f"{stem}.dist-info/RECORD"] = _record(files, f"{stem}.dist-info/RECORD")
    path = folder / f"{stem}-{tag}.whl"
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name, EPOCH)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o100644 << 16
            archive.writestr(member, content)
    return path


def _installed() -> dict[str, bytes]:
    """Return name in the wheel -> content of all files of the installed tracebed, sorted by name."""
    try:
        distribution = importlib.metadata.distribution("tracebed")
    except importlib.metadata.PackageNotFoundError as error:
        raise TestbedError("tracebed is not installed", hint="install tracebed with pip") from error
    found: dict[str, Path] = {}
    for file in distribution.files or ():
        name, path = file.as_posix(), Path(str(file.locate()))
        if name.endswith(".pth"):  # an editable installation lists its source folders there
            for line in path.read_text(encoding="utf-8").splitlines():
                root = Path(line)
                found |= {str(file.relative_to(root)): file for file in (root / "tracebed").rglob("*")}
        elif name.startswith("tracebed/"):
            found[name] = path
        else:
            top, _, rest = name.partition("/")
            if top.endswith(".dist-info") and rest.startswith(METADATA):
                found[name] = path
    return {
        name: path.read_bytes()
        for name, path in sorted(found.items())
        if "__pycache__" not in path.parts and path.is_file()
    }


def _record(files: dict[str, bytes], name: str) -> bytes:
    """Return the content of the file RECORD, which has the name `name`, of a wheel with `files`."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for file, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([file, f"sha256={digest}", len(content)])
    rows.writerow([name, "", ""])
    return text.getvalue().encode()
