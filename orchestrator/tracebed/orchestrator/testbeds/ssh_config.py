"""SSH configurations as inventories: each host that is named without a wildcard is a node of provider `ssh`."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tracebed.ground.errors import InputError
from tracebed.ground.input_files import read_text
from tracebed.ground.ranges import parse_names
from tracebed.ground.yaml_file import MAX_CHARACTERS, abbreviated
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.provider import PROVIDERS

USER_FILE = Path("~/.ssh/config")  # The configuration of the user. SSH reads it by default.
# The folders whose SSH configurations, and the files that these include, may run commands on this machine.
TRUSTED = ("~/.ssh", "/etc/ssh")
BLOCKS = ("host", "match")  # keywords that begin a block of options for some hosts
DEEPEST = 16  # largest accepted depth of included files, as in OpenSSH
HINT = "each line of an SSH configuration is a keyword and its arguments; `Host NAME` begins the options of a host"


class SshConfigLine(NamedTuple):
    """A line of an SSH configuration: its file and number, its keyword in lower case, its arguments, and its text."""

    file: Path
    number: int
    keyword: str
    arguments: tuple[str, ...]
    text: str

    @property
    def where(self) -> str:
        """The place of the line, for messages."""
        return f"{self.file}:{self.number}"


def lines_of(path: Path, *, depth: int = 0) -> Iterator[SshConfigLine]:
    """Yield the lines of an SSH configuration, with the lines of included files in place of `Include`.

    paramiko ignores `Include`, so the provider `ssh` reads these lines too. `depth` is the number of files that include
    this one.
    """
    text = read_text(path, "SSH configuration", hint=HINT)
    if len(text) > MAX_CHARACTERS:
        raise InputError("is too long for an SSH configuration", where=str(path), hint="check the path")
    block: SshConfigLine | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            continue
        line = _line(path, number, stripped)
        if line.keyword != "include":
            block = line if line.keyword in BLOCKS else block
            yield line
            continue
        if depth >= DEEPEST:
            raise InputError(f"files are included more than {DEEPEST} deep", where=line.where, hint="remove the cycle")
        for file in _included(line):
            for inner in lines_of(file, depth=depth + 1):
                if block is not None and inner.keyword in BLOCKS:
                    break  # a block inside a block would apply only to hosts of both, which no line can express
                yield inner
            # The block of the included file ends with the file.
            yield block or SshConfigLine(path, number, "host", ("*",), "Host *")


def trusted_lines(path: Path) -> Iterator[SshConfigLine]:
    """Yield `lines_of(path)`. A line that runs a command here is an InputError unless its file or `path` is trusted."""
    for line in lines_of(path):
        if _runs_command(line) and not any(map(_is_trusted, (path, line.file))):
            what = f"the SSH configuration runs a command on this machine: {line.text}"
            raise InputError(what, where=line.where, hint="use ProxyJump, or move the entry to ~/.ssh/config")
        yield line


def _is_trusted(file: Path) -> bool:
    """Return whether an SSH configuration, or the target of its link, is in a trusted folder."""
    places = (Path(os.path.abspath(file)), file.resolve())  # noqa: PTH100  `resolve` follows links
    return any(place.is_relative_to(Path(folder).expanduser()) for place in places for folder in TRUSTED)


def _runs_command(line: SshConfigLine) -> bool:
    """Return whether a line of an SSH configuration runs a command on this machine."""
    return line.keyword == "proxycommand" or (line.keyword == "match" and "exec" in line.text.lower())


def _line(path: Path, number: int, text: str) -> SshConfigLine:
    found = re.fullmatch(r"([A-Za-z]\w*)(?:\s*=\s*|\s+)(.*)", text)
    try:
        arguments = tuple(shlex.split(found[2])) if found else ()
    except ValueError:
        arguments = ()
    if found is None or not arguments:
        raise InputError(f"line {abbreviated(text)} is invalid", where=f"{path}:{number}", hint=HINT)
    return SshConfigLine(path, number, found[1].lower(), arguments, text)


def _included(line: SshConfigLine) -> Iterator[Path]:
    """Yield the files that a line includes. OpenSSH looks for relative names in ~/.ssh or in /etc/ssh."""
    base = line.file.parent if line.file.is_relative_to("/etc/ssh") else Path("~/.ssh").expanduser()
    for pattern in line.arguments:
        for name in sorted(glob.glob(str(base / Path(pattern).expanduser()))):  # noqa: PTH207  # may be absolute
            yield Path(name)


def groups_of(path: Path, mark: str) -> Iterator[Group]:
    """Yield the group of the hosts of an SSH configuration, in the order of the file. There must be a host."""
    hosts: dict[str, None] = {}
    for line in lines_of(path):
        for alias in line.arguments if line.keyword == "host" else ():
            if any(sign in alias for sign in "*?!"):
                continue
            try:
                parse_names(alias, most=1)
            except InputError as error:
                raise InputError(
                    f"host {abbreviated(alias)}: {error.what}", where=line.where, hint=error.hint
                ) from error
            hosts[alias] = None
    if not hosts:
        hint = "nodes are the hosts of `Host NAME` without a wildcard"
        raise InputError("the SSH configuration names no host", where=str(path), hint=hint)
    settings = PROVIDERS.load("ssh").Settings
    own = path.resolve() != USER_FILE.expanduser().resolve()
    nodes = tuple(Node(alias, 0, provider="ssh") for alias in hosts)
    yield Group("ssh", "ssh", settings.model_validate({"config": str(path)} if own else {}), nodes, f"{mark}-ssh")
