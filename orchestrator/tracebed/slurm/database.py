"""What Slurm keeps in its database: accounts, users and QOS, from the output of sacctmgr.

Source: sacctmgr(1) of Slurm 22.05, and files that sacctmgr of Slurm 22.05.8 wrote: `sacctmgr dump CLUSTER` and
`sacctmgr -P show qos`. The lines of QOS in a dump of newer versions: the keys that their sacctmgr prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from tracebed.ground.errors import InputError
from tracebed.ground.input_files import read_file
from tracebed.slurm import power_saving
from tracebed.slurm.reservations import recognized
from tracebed.slurm.values import Fact, duration_s

CONF, DUMP, QOS = "slurm.conf", "dump of sacctmgr", "table of QOS"
RESERVATIONS = "list of reservations"
POWER = "file of the power of nodes"
"""What a file is."""
MAX_BYTES = 2**26
"""Largest accepted size of a file. A dump has some hundred bytes for each user."""
ENTRY = re.compile(r"(QOS|Cluster|Parent|Account|User) - '([^']*)'((?::\w+=(?:'[^']*'|[^:']*))*)\s*")
SETTING = re.compile(r":(\w+)=(?:'([^']*)'|([^:']*))")
PARENT = ("parent", str(2**31 - 1))
"""How dumps of newer versions, and of 22.05, write `Fairshare=parent`."""
PREEMPT_MODES = ("cancel", "requeue", "suspend", "off")
SCALES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
"""Suffix of an amount of memory -> MiB."""
ROOT = "root"

LIMITS: Mapping[str, tuple[str, ...]] = {
    "jobs": ("GrpJobs",),
    "submit": ("GrpSubmitJobs", "GrpSubmit"),
    "tres": ("GrpTRES",),
    "user_jobs": ("MaxJobsPU", "MaxJobsPerUser", "MaxJobs"),
    "user_submit": ("MaxSubmitPU", "MaxSubmitJobsPU", "MaxSubmitJobsPerUser", "MaxSubmitJobs", "MaxSubmit"),
    "user_tres": ("MaxTRESPU", "MaxTRESPerUser"),
    "account_jobs": ("MaxJobsPA", "MaxJobsPerAccount"),
    "account_submit": ("MaxSubmitPA", "MaxSubmitJobsPA", "MaxSubmitJobsPerAccount"),
    "account_tres": ("MaxTRESPA", "MaxTRESPerAccount"),
    "job_tres": ("MaxTRESPerJob", "MaxTRES"),
    "least_tres": ("MinTRES", "MinTRESPerJob"),
    "wall_s": ("MaxWallDurationPerJob", "MaxWall"),
}
"""Field of `Limits` -> its names in a dump, in the table of QOS, and for `sacctmgr modify`."""
SETTINGS = {
    "QOS": ("Priority", "UsageFactor", "GraceTime", "Preempt", "PreemptMode", "PreemptExemptTime"),
    "association": ("Fairshare", "Priority"),
}
"""Other settings of a QOS and of an association that a change may have."""
USED = frozenset(
    (
        *("Name", "Priority", "Flags", "UsageFactor", "Fairshare", "FairShare", "DefaultAccount", "DefaultQOS", "QOS"),
        *("Description", "Organization", "AdminLevel", "Coordinator", "Classification", "Cluster", "Partition"),
        *("DefaultWCKey", "WCKeys", "GraceTime", "Preempt", "PreemptExemptTime", "PreemptMode"),
        *("Account", "User", "ParentName", "Share", "Def QOS"),
    )
)
"""Further names that are read, or that change no decision."""
FLAGS = frozenset(("DenyOnLimit", "NoReserve", "OverPartQOS", "PartitionTimeLimit", "NoDecay"))
"""Flags of a QOS that are modeled, or have an effect on unmodeled limits only."""
ABSENT = ("", "-1", "0.000000")

COUNTED = re.compile(r"cpu|mem|node|billing|gres/[^:]+")
"""Resources whose amounts limits count. Licences, file systems and types of generic resources are not counted."""
COUNTED_HINT = "write cpu, mem, node, billing or gres/NAME"


class Limits(Fact):
    """Limits of a QOS or an association. Missing: no limit.

    Attributes:
        jobs, submit, tres: running jobs, running and waiting jobs, and resources of running jobs, of all together.
        user_jobs, user_submit, user_tres: the same of each user.
        account_jobs, account_submit, account_tres: the same of each account.
        job_tres, least_tres: most and least resources of a job.
        wall_s: largest time limit of a job, s.
    """

    jobs: int | None = None
    submit: int | None = None
    tres: dict[str, int] = Field(default_factory=dict)
    user_jobs: int | None = None
    user_submit: int | None = None
    user_tres: dict[str, int] = Field(default_factory=dict)
    account_jobs: int | None = None
    account_submit: int | None = None
    account_tres: dict[str, int] = Field(default_factory=dict)
    job_tres: dict[str, int] = Field(default_factory=dict)
    least_tres: dict[str, int] = Field(default_factory=dict)
    wall_s: float | None = None


class Association(Fact):
    """An account, or a user of an account.

    Attributes:
        user: name of the user; empty: the association is an account.
        partition: partition of the association; empty: each.
        shares: shares among its siblings; -1: those of its parent.
        priority: priority of the association; None: that of its parent.
        default: whether the account is the default of the user.
        default_qos: QOS of jobs that name none; empty: that of the parent.
        qos: names of the QOS that its jobs may use; empty: those of the parent.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    shares: int = 1
    priority: int | None = None
    default: bool = False
    default_qos: str = ""
    qos: tuple[str, ...] = ()
    limits: Limits = Limits()


class Qos(Fact):
    """A quality of service.

    Attributes:
        priority: its priority, relative to the largest one.
        preempts: the QOS whose jobs its jobs preempt.
        preempt_mode: what happens to its jobs if they are preempted; empty: as in the whole cluster.
        grace_s: time from the preemption to the end of its jobs, s.
        exempt_s: a job that has run for less time is not preempted, s; None: as in the whole cluster.
    """

    name: str
    priority: int = 0
    usage_factor: float = 1.0
    flags: tuple[str, ...] = ()
    limits: Limits = Limits()
    preempts: tuple[str, ...] = ()
    preempt_mode: str = ""
    grace_s: int = 0
    exempt_s: float | None = None


class Database(Fact):
    """Accounts, users and QOS. The associations are in the order of a dump: each after its parent."""

    associations: tuple[Association, ...] = ()
    qos: tuple[Qos, ...] = ()


def in_cores(database: Database, threads: int) -> Database:
    """Return the database with limits of cores for those of CPUs: Slurm counts the threads of a core as CPUs."""

    def counted(limits: Limits) -> Limits:
        own = {
            field: {
                **values,
                "cpu": -(-values["cpu"] // threads) if field == "least_tres" else values["cpu"] // threads,
            }
            for field, values in limits
            if isinstance(values, dict) and "cpu" in values
        }
        return limits.model_copy(update=own)

    if threads == 1:
        return database
    return Database(
        associations=tuple(each.model_copy(update={"limits": counted(each.limits)}) for each in database.associations),
        qos=tuple(each.model_copy(update={"limits": counted(each.limits)}) for each in database.qos),
    )


def kind_of(path: Path) -> tuple[str, str]:
    """Return what a file is: `CONF`, `DUMP`, `QOS`, `RESERVATIONS` or `POWER`; and its text, unless it is a slurm.conf.

    A pipe can be read only once, and is taken for a slurm.conf.
    """
    if not path.is_file():
        return CONF, ""
    text = read_file(path, CONF, most=MAX_BYTES).decode("utf-8", "replace")
    if recognized(text):
        return RESERVATIONS, text
    if power_saving.recognized(text):
        return POWER, text
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    if ENTRY.match(first):
        return DUMP, text
    header = first.split("|")
    return (QOS, text) if len(header) > 1 and "Name" in header else (CONF, "")


def read_dump(text: str, where: str) -> tuple[tuple[Association, ...], list[str]]:
    """Return the associations of a dump, the root first, and the settings that are not modeled, such as `GrpWall=5`."""
    found: list[Association] = []
    ignored: list[str] = []
    qos_of: dict[str, tuple[str, ...]] = {}
    parent = ROOT
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        here = f"{where}:{number}"
        if (entry := ENTRY.fullmatch(line)) is None:
            hint = "give the output of `sacctmgr dump CLUSTER`, unchanged"
            raise InputError(f"{line[:60]!r} is not a line of sacctmgr dump", where=here, hint=hint)
        kind, name, rest = entry.groups()
        if kind == "QOS":  # the dump of Slurm 26.05 begins with them: see `read_qos_of_dump`
            continue
        values = {key: quoted or plain for key, quoted, plain in SETTING.findall(rest)}
        if kind == "Parent":
            if name not in qos_of:
                raise InputError(f"the account {name!r} is not in the lines above", where=here, hint="sort the dump")
            parent = name
            continue
        if kind == "Cluster":
            name = ROOT
        qos = _qos(qos_of.get(parent, ()), values.get("QOS", ""))
        own = {"account": parent, "user": name} if kind == "User" else {"account": name}
        if kind != "User":
            qos_of[name] = qos
        shares = values.get("Fairshare") or values.get("FairShare", "")
        found.append(
            Association(
                **own,
                partition=values.get("Partition", ""),
                parent=parent if kind == "Account" else "",
                shares=_shares(shares, here),
                priority=_whole(values["Priority"], 0, here) if values.get("Priority") else None,
                default=kind == "User" and values.get("DefaultAccount") == parent,
                default_qos=values.get("DefaultQOS", ""),
                qos=() if kind != "Cluster" and qos == qos_of[parent] else qos,
                limits=_limits(values, here),
            )
        )
        label = f"{kind.lower()} {name}"
        ignored += [f"{key}={value} ({label})" for key, value in _unmodeled(values)]
    if not found or found[0].account != ROOT:
        raise InputError("the line of the cluster is missing", where=where, hint="give the whole output")
    return tuple(found), ignored


ASSOCIATIONS = (
    *("sacctmgr", "-P", "show", "assoc"),
    "format=Account,User,Partition,ParentName,Share,Priority,QOS,DefaultQOS,GrpJobs,GrpSubmit,GrpTRES,GrpTRESMins,"
    "GrpTRESRunMins,GrpWall,MaxJobs,MaxSubmit,MaxTRES,MaxTRESMins,MaxTRESPerNode,MaxWall",
)
"""The command that prints the table of `read_associations`."""


def read_associations(text: str, where: str) -> tuple[tuple[Association, ...], list[str]]:
    """Return the associations of a table, the root first, and the settings that are not modeled."""
    found: list[Association] = []
    ignored: list[str] = []
    accounts = {""}
    for values, here in _rows(text, where, " ".join(ASSOCIATIONS)):
        account, user = values.get("Account", ""), values.get("User", "")
        parent = values.get("ParentName", "")
        if (account if user else parent) not in accounts:
            what = f"the parent of {user or account} is not in the lines above"
            raise InputError(what, where=here, hint="do not sort the output")
        accounts.add(account)
        share = values.get("Share", "")
        found.append(
            Association(
                account=account,
                user=user,
                partition=values.get("Partition", ""),
                parent="" if user else parent,
                shares=_shares(share, here),
                priority=_whole(values["Priority"], 0, here) if values.get("Priority") else None,
                default_qos=values.get("Def QOS", ""),
                qos=tuple(filter(None, values.get("QOS", "").split(","))),
                limits=_limits(values, here),
            )
        )
        label = f"user {user}" if user else f"account {account}"
        ignored += [f"{key}={value} ({label})" for key, value in _unmodeled(values)]
    if not found or found[0].account != ROOT:
        raise InputError("the line of the account root is missing", where=where, hint="give the whole output")
    return tuple(found), ignored


def _rows(text: str, where: str, command: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the rows of a table, by the names of the header, and their places."""
    header: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        row = line.split("|")
        if not header:
            header = row
            continue
        here = f"{where}:{number}"
        if len(row) != len(header):
            hint = f"give the output of `{command}`, unchanged"
            raise InputError(f"{len(row)} columns, but the header has {len(header)}", where=here, hint=hint)
        yield dict(zip(header, row, strict=True)), here


def _qos(inherited: Sequence[str], text: str) -> tuple[str, ...]:
    """Return the QOS of an association: `+a,-b` changes those of the parent, other names replace them."""
    names = [name for name in text.split(",") if name]
    if not names:
        return tuple(inherited)
    found = list(inherited) if names[0][0] in "+-" else []
    for name in names:
        if name[0] == "-":
            found = [other for other in found if other != name[1:]]
        elif name.lstrip("+") not in found:
            found.append(name.lstrip("+"))
    return tuple(found)


def read_qos(text: str, where: str) -> tuple[tuple[Qos, ...], list[str]]:
    """Return the QOS of a table, and the settings that are not modeled."""
    return _all_qos(_rows(text, where, "sacctmgr -P show qos"))


def read_qos_of_dump(text: str, where: str) -> tuple[tuple[Qos, ...], list[str]]:
    """Return the QOS of a dump, of a version of Slurm whose dump has them, and the settings that are not modeled."""

    def rows() -> Iterator[tuple[dict[str, str], str]]:
        for number, line in enumerate(text.splitlines(), 1):
            if (entry := ENTRY.fullmatch(line)) is not None and entry[1] == "QOS":
                values = {"Name": entry[2]} | {key: quoted or plain for key, quoted, plain in SETTING.findall(entry[3])}
                for key in {"GraceTime", "PreemptExemptTime"} & values.keys():
                    values[key] = f"0:0:{values[key]}"  # a dump has seconds, where the table has h:min:s
                yield values, f"{where}:{number}"

    return _all_qos(rows())


def _all_qos(rows: Iterable[tuple[dict[str, str], str]]) -> tuple[tuple[Qos, ...], list[str]]:
    """Return the QOS of rows, and the settings that are not modeled."""
    found: list[Qos] = []
    ignored: list[str] = []
    for values, here in rows:
        found.append(_qos_of(values, here))
        name, flags = found[-1].name, found[-1].flags
        ignored += [f"{key}={value} (QOS {name})" for key, value in _unmodeled(values)]
        ignored += [f"Flags={flag} (QOS {name})" for flag in flags if flag not in FLAGS]
    return tuple(found), ignored


def _qos_of(values: Mapping[str, str], here: str) -> Qos:
    return Qos(
        name=values["Name"],
        priority=_whole(values.get("Priority", ""), 0, here),
        usage_factor=_number(values.get("UsageFactor") or "1", here),
        flags=tuple(filter(None, values.get("Flags", "").split(","))),
        limits=_limits(values, here),
        preempts=tuple(filter(None, values.get("Preempt", "").split(","))),
        preempt_mode=mode_of(values.get("PreemptMode", "")),
        grace_s=int(duration_s(values.get("GraceTime") or "0", here)),
        exempt_s=duration_s(values["PreemptExemptTime"], here) if values.get("PreemptExemptTime") else None,
    )


def with_setting(row: Qos | Association, key: str, value: str, where: str) -> Qos | Association:
    """Return a QOS or an association with a changed setting, as `sacctmgr modify` changes it.

    Args:
        row: the QOS or association.
        key: a name of `LIMITS` or of `SETTINGS`, as spelled there.
        value: the value. -1: no limit. A list of resources changes these, and leaves the others as they are.
        where: the place, for messages.

    Raises:
        InputError: the value is invalid.
    """
    field = next((field for field, names in LIMITS.items() if key in names), None)
    counts = key == "Priority" or (field is not None and not field.endswith(("tres", "wall_s")))
    if counts and value != "-1" and not (value.isascii() and value.isdecimal()):
        raise InputError(f"{key} is {value!r}, not a whole number", where=where, hint="give a number, or -1: no limit")
    if field is None:
        if isinstance(row, Qos):
            parsed = _qos_of({"Name": row.name, key: value}, where)
            fields = ("priority", "usage_factor", "grace_s", "preempts", "preempt_mode", "exempt_s")
            field = dict(zip(SETTINGS["QOS"], fields, strict=True))[key]
            return row.model_copy(update={field: getattr(parsed, field)})
        if key == "Priority":
            return row.model_copy(update={"priority": None if value == "-1" else _whole(value, 0, where)})
        return row.model_copy(update={"shares": _shares(value, where)})
    if field.endswith("tres"):
        items = [item for item in value.split(",") if item]
        lifted = {item.removesuffix("=-1").lower() for item in items if item.endswith("=-1")}
        given = tres_of(",".join(item for item in items if not item.endswith("=-1")), where)
        if unknown := [name for name in {*lifted, *given} if not COUNTED.fullmatch(name)]:
            raise InputError(f"{min(unknown)} is a resource whose limit is not modeled", where=where, hint=COUNTED_HINT)
        old = getattr(row.limits, field)
        new: object = {name: amount for name, amount in {**old, **given}.items() if name not in lifted}
    else:
        new = getattr(_limits({key: value}, where), field)
    return row.model_copy(update={"limits": row.limits.model_copy(update={field: new})})


def _shares(text: str, where: str) -> int:
    """Return shares; -1: those of the parent."""
    return -1 if text in PARENT else _whole(text, 1, where)


def mode_of(text: str) -> str:
    """Return the part of `PreemptMode` that says what happens to a preempted job; empty: it does not say so."""
    return next((each for each in text.lower().split(",") if each in PREEMPT_MODES), "")


def _unmodeled(values: Mapping[str, str]) -> list[tuple[str, str]]:
    known = USED.union(*LIMITS.values())
    found = [(key, value) for key, value in values.items() if key not in known and value not in ABSENT]
    of_resources = {name for field, names in LIMITS.items() if field.endswith("tres") for name in names}
    for key in of_resources & values.keys():
        items = values[key].split(",") if values[key] not in ABSENT else []
        found += [(key, item) for item in items if item and not COUNTED.fullmatch(item.partition("=")[0].lower())]
    return sorted(found)


def _limits(values: Mapping[str, str], where: str) -> Limits:
    found: dict[str, object] = {}
    for field, names in LIMITS.items():
        text = next((values[name] for name in names if values.get(name, "") not in ("", "-1")), "")
        if not text:
            continue
        if field == "wall_s":
            found[field] = duration_s(text, where)
        elif field.endswith("tres"):
            found[field] = tres_of(text, where)
        else:
            found[field] = _whole(text, 0, where)
    return Limits.model_validate(found)


def tres_of(text: str, where: str) -> dict[str, int]:
    """Return trackable resources such as `cpu=4,mem=5G,gres/gpu=2`: name -> amount; memory in MiB."""
    found = {}
    for item in filter(None, text.split(",")):
        name, _, amount = item.partition("=")
        number = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", amount)
        if number is None:
            raise InputError(f"{item[:40]!r} is not an amount of a resource", where=where, hint="write cpu=4,mem=5G")
        scale = SCALES[number[2]] if number[2] else 1
        found[name.lower()] = int(float(number[1]) * scale)
    return found


def _whole(text: str, default: int, where: str) -> int:
    """Return a whole number; `default` if the text is empty."""
    return int(_number(text, where)) if text else default


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{text[:40]!r} is not a number", where=where, hint="write 0.5") from error
