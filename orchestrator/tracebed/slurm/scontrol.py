"""The output of `scontrol show` as records of fields, and the tables of `sprio` and `sshare`.

Tried on Slurm 22.05.8. Fields that are not used may be missing, and others may be added.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tracebed.ground.errors import InputError
from tracebed.ground.host_lists import host_names
from tracebed.slurm.machine import duration_s

FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")
NAME = re.compile(r"(?s) JobName=.*?(?= UserId=[^\s(]+\(\d+\) GroupId=)")
"""The name of a job, which may have any characters. No other field is read from it."""
MISSING = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "NotSet"})
YEAR_S = 365 * 86400.0
"""The limit of a job without one, as for Slurm."""


@dataclass(frozen=True)
class Record:
    """A job, node or partition: the first value of each field, the whole record, and its file and line."""

    fields: Mapping[str, str]
    text: str
    where: str

    def of(self, *names: str) -> str:
        """Return the first of these fields that has a value; empty: none has."""
        for name in names:
            value = self.fields.get(name, "")
            if value not in MISSING:
                return value
        return ""

    def needed(self, name: str) -> str:
        """Return a field; raise InputError if it is missing."""
        if name not in self.fields:
            hint = "save the output of Slurm 20.11 or newer, as it is"
            raise InputError(f"the record has no field {name}", where=self.where, hint=hint)
        return self.fields[name]

    def number(self, name: str) -> int:
        """Return the first whole number of a field; raise InputError if there is none."""
        found = re.match(r"\d{1,15}", self.needed(name))
        if found is None:
            what = f"{name}={self.fields[name][:40]} is not a number"
            raise InputError(what, where=self.where, hint="save the output of scontrol as it is")
        return int(found[0])

    def instant(self, name: str) -> float | None:
        """Return a time on the clock of the cluster, s; None: unknown."""
        value = self.of(name)
        return instant(value, self.where) if value else None

    def limit_s(self, name: str) -> float:
        """Return a time limit, s; without one: `YEAR_S`."""
        value = self.needed(name)
        return YEAR_S if value in MISSING or value == "Partition_Limit" else duration_s(value, self.where) or YEAR_S


def records(text: str, first: str, where: str) -> list[Record]:
    """Return the records of `scontrol show`, also without `-o`. `first`: the first field of each, such as `JobId`."""
    found = []
    line = 1
    for part in re.split(r"\n(?=\S)", text):
        place, lines = f"{where}:{line}", part.count("\n") + 1
        line += lines
        joined = " ".join(part.split())
        if not joined or re.match(r"No (?:jobs|nodes|partitions) in the system", joined):
            continue
        if not joined.startswith(f"{first}="):
            what = f"{joined[:40]!r} is not a record that begins with {first}="
            raise InputError(what, where=place, hint="save the output of scontrol -o show, without other lines")
        name = NAME.search(joined)
        plain = NAME.sub("", joined, count=1)
        marks = [*FIELD.finditer(plain)]
        ends = [mark.start() for mark in marks[1:]] + [len(plain)]
        fields: dict[str, str] = {}
        for mark, end in zip(marks, ends, strict=True):
            fields.setdefault(mark[1], plain[mark.end() : end].strip())
        if name:
            fields["JobName"] = name[0].partition("=")[2]
        found.append(Record(fields, plain, place))
    return found


def configuration(text: str, where: str) -> tuple[float, dict[str, str]]:
    """Return the instant of `scontrol show config`, on the clock of the cluster, and the settings without units."""
    begun = re.match(r"Configuration data as of (\S+)\s", text)
    if begun is None:
        raise InputError("is not the output of scontrol show config", where=f"{where}:1", hint="save it as it is")
    pairs = re.findall(r"^(\w+)[ \t]*= ?(.*?)[ \t]*$", text, re.MULTILINE)
    settings = {name: re.sub(r"^(\d+) (?:sec|min|usec|percent|nodes/min)$", r"\1", value) for name, value in pairs}
    return instant(begun[1], f"{where}:1"), {name: value for name, value in settings.items() if value not in MISSING}


def instant(text: str, where: str) -> float:
    """Return a time such as 2026-01-31T12:00:00 on the clock of the cluster, s. The zone does not matter."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        hint = "save the output without SLURM_TIME_FORMAT"
        raise InputError(f"{text[:40]!r} is not a time", where=where, hint=hint) from None


def priority_factors(text: str, where: str) -> dict[int, tuple[float, float]]:
    """Return job -> the parts of its priority that come from its age and from the fair share, from `sprio -l`."""
    lines = text.splitlines()
    names = lines[0].split() if lines else []
    if not {"JOBID", "AGE", "FAIRSHARE"} <= {*names}:
        raise InputError("is not the output of sprio -l", where=f"{where}:1", hint="save it as it is, or remove it")
    age, share = names.index("AGE"), names.index("FAIRSHARE")
    found: dict[int, tuple[float, float]] = {}
    for number, line in enumerate(lines[1:], 2):
        words = line.split()
        try:
            found[int(words[0])] = (float(words[age]), float(words[share]))
        except (ValueError, IndexError):
            what = f"{line.strip()[:40]!r} is not a line of sprio -l"
            raise InputError(what, where=f"{where}:{number}", hint="save it as it is, or remove the file") from None
    return found


@dataclass(frozen=True)
class Share:
    """An association of a user with an account: their shares, decayed usage in core seconds, and fair-share factor."""

    account: str
    user: str
    share: float
    account_share: float
    usage: float
    factor: float


def shares(text: str, where: str) -> list[Share]:
    """Return the associations in the output of `sshare -a -l -P`.

    There are none if accounts lie below accounts, or if Slurm computes no factors (`PriorityType=priority/basic`).
    """
    lines = [line.split("|") for line in text.splitlines()]
    names = lines[0] if lines else []
    wanted = ("Account", "User", "NormShares", "RawUsage", "FairShare")
    if not {*wanted} <= {*names}:
        raise InputError("is not the output of sshare -a -l -P", where=f"{where}:1", hint="save it as it is")
    at = [names.index(name) for name in wanted]
    of_account: dict[str, float] = {}
    found = []
    for number, line in enumerate(lines[1:], 2):
        try:
            account, user, share, usage, factor = (line[k].strip() for k in at)
            if not user and line[at[0]].startswith("  "):
                return []
            if not user:
                of_account[account] = float(share or 0)
            elif not share:
                return []
            elif account != "root":
                found.append(Share(account, user, float(share), of_account[account], float(usage), float(factor)))
        except (ValueError, IndexError, KeyError):
            what = f"{'|'.join(line)[:60]!r} is not a line of sshare -a -l -P"
            raise InputError(what, where=f"{where}:{number}", hint="save it as it is, or remove the file") from None
    return found


def task_numbers(text: str) -> Sequence[int]:
    """Return the numbers of a list of array tasks such as `3-5,9%2`, also `0-8:2`."""
    found: list[int] = []
    for item in text.partition("%")[0].split(","):
        if match := re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?(?::(\d{1,7}))?", item):
            found += range(int(match[1]), int(match[2] or match[1]) + 1, max(1, int(match[3] or 1)))
    return found


def kept_gres(text: str) -> dict[str, set[str]]:
    """Return the generic resources that running jobs do not consume, by node, from `scontrol -d show job`.

    The nodes of scontrol lack the flag no_consume. A job there has `GRES=bw(CNT:0)` or `GRES=bw:0`.
    """
    found: dict[str, set[str]] = {}
    for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S+)", text):
        names = re.findall(r"(?:^|,)(\w+)(?::[^,:(]+)?(?:\(CNT:0\)|:0)(?=,|$)", gres)
        with contextlib.suppress(ValueError):  # the reader of the job tells an invalid list of nodes
            for node in host_names(nodes) if names else ():
                found.setdefault(node, set()).update(names)
    return found
