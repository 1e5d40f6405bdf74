"""Accounts, users and QOS of the jobs of a workload: the tree of fair shares, and the limits that apply to each job.

Slurm checks the limits of the partition's QOS first, then those of the job's QOS (the other way round with the flag
OverPartQOS), then those of the associations from the user up to the root. The first that sets a limit decides; a limit
of a QOS replaces the same limit of all associations. Source: "Resource Limits" of Slurm's documentation, and
experiments on Slurm 22.05.8 (`record_slurm_accounts.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

from tracebed.slurm.database import ROOT, Association, Qos
from tracebed.slurm.database import Limits as LimitsOf
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.simulation.inputs import (
    BILLING,
    CORES,
    GRES,
    JOBS,
    MEMORY,
    NODES,
    SUBMITTED,
    Associations,
    Ints,
    Limit,
    Limits,
)

NONE = -1
"""Association of a job that has none."""
NORMAL = "normal"
"""QOS of jobs without a QOS."""
UNKNOWN = "(unknown)"
"""User of jobs without a user, in a workload without a database."""
TRES = {"cpu": CORES, "mem": MEMORY, "node": NODES, "billing": BILLING}
GROUP = {"cpu": "CpuLimit", "mem": "MemLimit", "node": "NodeLimit", "billing": "Billing", "gres": "GRES"}
EACH = {"cpu": "Cpu{}Limit", "mem": "Memory{}", "node": "Node{}Limit", "billing": "Billing{}", "gres": "GRES{}"}
OF_ASSOCIATION = EACH | {"mem": "Mem{}"}
OF_ACCOUNT = {"cpu": "Cpu", "mem": "Memory", "node": "Node", "billing": "Billing", "gres": "GRES"}
LEAST = {"cpu": "CpuNotSatisfied", "mem": "Memory", "node": "Node", "billing": "Billing", "gres": "GRES"}
"""Resource -> its part of the reasons that squeue prints, for each kind of limit."""


class Owner(NamedTuple):
    """To whom a job belongs, and where it runs: what its limits depend on."""

    association: int
    user: str
    account: str
    qos: str
    partition_qos: str


class Accounting:
    """What the database of Slurm says about the jobs of a workload; without a database, all have equal shares."""

    def __init__(
        self, cluster: SlurmCluster, kinds: Sequence[str], accounts: Sequence[str], users: Sequence[str]
    ) -> None:
        """Prepare for a workload whose jobs have these accounts and users, and these kinds of generic resources."""
        self._cluster, self._kinds = cluster, kinds
        self.associations = [*cluster.database.associations] or _equal(accounts, users)
        self._index: dict[tuple[str, str, str], int] = {}
        self._default: dict[str, str] = {}
        for number, each in enumerate(self.associations):
            self._index.setdefault((each.account, each.user, each.partition), number)
            if each.default:
                self._default.setdefault(each.user, each.account)
        self._qos = {each.name: each for each in cluster.database.qos}
        self._counters: dict[tuple[str, object, int], int] = {}
        self._groups: dict[Owner, int] = {}
        self.of = cache(lambda owner: [*self._of(owner)])
        """The limits that apply to the jobs of an owner, in the order in which Slurm checks them."""
        self._single = cache(lambda owner: [*self._sources(owner)])

    @cached_property
    def _parent(self) -> list[int]:
        """The parent of each association; that of the root is the root."""
        above = [each.account if each.user else each.parent or ROOT for each in self.associations]
        return [0, *(self._index.get((name, "", ""), 0) for name in above[1:])]

    def tree(self, half_life_s: float, resets: Sequence[int], dampening: int) -> Associations:
        """Return the tree of fair shares."""
        shares, users = [each.shares for each in self.associations], [bool(each.user) for each in self.associations]
        return Associations(self._parent, shares, users, half_life_s, resets, dampening)

    def owner(self, account: str, user: str, qos: str, number: int) -> Owner | str:
        """Return the association and QOS of a job of partition `number`, or why Slurm refuses the job."""
        partition = self._cluster.partitions[number]
        enforced, database = self._cluster.enforced, self._cluster.database
        account, user = account or self._default.get(user, ""), user or ("" if database.associations else UNKNOWN)
        own = next(
            (self._index[key] for key in ((account, user, partition.name), (account, user, "")) if key in self._index),
            NONE,
        )
        if own == NONE and user and database.associations and "associations" in enforced:
            return f"InvalidAccount: the user {user} has no association with the account {account or '(none)'}"
        if database.qos or database.associations:
            allowed: tuple[str, ...] = self._inherited(own, "qos") or ()
            qos = qos or self._inherited(own, "default_qos") or (allowed[0] if len(allowed) == 1 else NORMAL)
            if "qos" in enforced and database.associations and own != NONE and qos not in allowed:
                return f"InvalidQOS: the user {user} of the account {account} may not use the QOS {qos}"
        return Owner(own, user, account, qos, partition.qos)

    def _chain(self, number: int) -> Iterator[int]:
        """Yield an association and those above it."""
        while number != NONE:
            yield number
            number = self._parent[number] if number else NONE

    def _inherited(self, number: int, name: str) -> Any:
        """Return an attribute of the first of an association and those above it that sets the attribute."""
        return next(filter(None, (getattr(self.associations[each], name) for each in self._chain(number))), None)

    # -- priorities ---------------------------------------------------------------------------------------------------

    def usage_factor(self, owner: Owner) -> float:
        """Return the factor of the usage of a job."""
        return self._qos[owner.qos].usage_factor if owner.qos in self._qos else 1.0

    def reserves(self, owner: Owner) -> bool:
        """Return whether backfill reserves nodes for a job."""
        return owner.qos not in self._qos or "NoReserve" not in self._qos[owner.qos].flags

    def beyond_partition(self, owner: Owner) -> bool:
        """Return whether the time limit of the partition does not apply to a job."""
        return owner.qos in self._qos and "PartitionTimeLimit" in self._qos[owner.qos].flags

    def priority(self, owner: Owner) -> float:
        """Return the part of the priority that comes from the QOS and the association."""
        weights = self._cluster.weights
        qos: float = self._qos[owner.qos].priority if owner.qos in self._qos else 0
        association: float = self._inherited(owner.association, "priority") or 0
        if weights.normal("qos"):
            qos = qos / max([1, *(each.priority for each in self._qos.values())])
        if weights.normal("assoc"):
            association = association / max([1, *(each.priority or 0 for each in self.associations)])
        found: float = weights.qos * qos + weights.association * association
        return found

    # -- limits -------------------------------------------------------------------------------------------------------

    def group(self, owner: Owner) -> int:
        """Return the number of the group of jobs that have the same limits."""
        return self._groups.setdefault(owner, len(self._groups))

    def limits(self, group: Ints) -> Limits:
        """Return the limits of all jobs, whose groups are given."""
        rules = [self.of(owner) for owner in self._groups]
        counted = [[*dict.fromkeys(self._counted(owner))] for owner in self._groups]
        return Limits(group, rules, counted, len(self._counters))

    def never(self, owner: Owner, amounts: Sequence[int], limit_s: float) -> str:
        """Return the limit with which a job that requests `amounts` for `limit_s` never starts; empty: none."""
        reason = self._alone(owner, amounts, limit_s)
        if not reason:
            return ""
        denied = any("DenyOnLimit" in each.flags for each in self._own(owner))
        return f"{reason}: Slurm refuses the job" if denied else f"{reason}: the job would wait for ever"

    def wall_s(self, owner: Owner) -> float:
        """Return the longest time limit of a job that its QOS and associations permit, s; infinity: any."""
        return next((own.wall_s for own, _, _ in self._single(owner) if own.wall_s is not None), math.inf)

    def _alone(self, owner: Owner, amounts: Sequence[int], limit_s: float) -> str:
        for limit in self.of(owner):
            if (limit.kind >= 0 and amounts[limit.kind] > limit.most) or (limit.kind == JOBS and limit.most < 1):
                return limit.reason
        for own, prefix, ends in self._single(owner):
            if own.wall_s is not None and limit_s > own.wall_s:
                return f"{prefix}MaxWallDurationPerJobLimit"
            for name, most in own.job_tres.items():
                kind = self._kind(name)
                if kind is not None and amounts[kind] > most:
                    return f"{prefix}Max{ends[_family(name)].format('PerJob')}"
            for name, least in own.least_tres.items():
                kind = self._kind(name)
                if kind is not None and amounts[kind] < least:
                    return f"QOSMin{LEAST[_family(name)]}"
        return ""

    def _sources(self, owner: Owner) -> Iterator[tuple[LimitsOf, str, Mapping[str, str]]]:
        """Yield the limits of single jobs, without those that a QOS replaces, with the words of the reasons."""
        if "limits" not in self._cluster.enforced:
            return
        wall, named = False, set[str]()
        chain = [self.associations[each].limits for each in self._chain(owner.association)]
        for own, prefix, ends in (
            *((each.limits, "QOS", EACH) for each in self._own(owner)),
            *((each, "Assoc", OF_ASSOCIATION) for each in chain),
        ):
            tres = {name: most for name, most in own.job_tres.items() if name not in named}
            yield own.model_copy(update={"job_tres": tres, "wall_s": None if wall else own.wall_s}), prefix, ends
            wall, named = wall or own.wall_s is not None, named | tres.keys()

    def _of(self, owner: Owner) -> Iterator[Limit]:
        """Yield the limits that apply to the jobs of `owner`, in the order in which Slurm checks them."""
        if "limits" not in self._cluster.enforced:
            return
        done = set[str]()
        found: list[Limit] = []
        for qos in self._own(owner):
            limits = [*self._of_qos(qos, owner)]
            found += [Limit(counter, kind, most, why) for name, most, counter, kind, why in limits if name not in done]
            done |= {name for name, *_ in limits}
        if done & {"account_jobs", "user_jobs"}:
            done.add("own_jobs")
        if done & {"account_submit", "user_submit"}:
            done.add("own_submit")
        limits = [*self._of_associations(owner)]
        found += [Limit(counter, kind, most, why) for name, most, counter, kind, why in limits if name not in done]
        yield from sorted(found, key=lambda limit: limit.kind >= 0)

    def _counted(self, owner: Owner) -> Iterator[tuple[int, int]]:
        """Yield the counters in which the jobs of `owner` count."""
        if "limits" not in self._cluster.enforced:
            return
        for qos in self._own(owner):
            yield from ((counter, kind) for _, _, counter, kind, _ in self._of_qos(qos, owner))
        yield from ((counter, kind) for _, _, counter, kind, _ in self._of_associations(owner))

    def _own(self, owner: Owner) -> list[Qos]:
        """Return the QOS whose limits apply to a job, in the order in which Slurm checks them."""
        names = [owner.partition_qos, owner.qos]
        if owner.qos in self._qos and "OverPartQOS" in self._qos[owner.qos].flags:
            names.reverse()
        return [self._qos[name] for name in dict.fromkeys(names) if name in self._qos]

    def _of_qos(self, qos: Qos, owner: Owner) -> Iterator[tuple[str, int, int, int, str]]:
        """Yield name, largest value, counter, kind and reason of the limits of a QOS on several jobs."""
        own = qos.limits
        scopes = (
            (("submit", own.submit, "GrpSubmitJobsLimit"), ("jobs", own.jobs, "GrpJobsLimit"), own.tres, ""),
            (
                ("account_submit", own.account_submit, "MaxSubmitJobsPerAccount"),
                ("account_jobs", own.account_jobs, "MaxJobsPerAccount"),
                own.account_tres,
                owner.account,
            ),
            (
                ("user_submit", own.user_submit, "MaxSubmitJobPerUserLimit"),
                ("user_jobs", own.user_jobs, "MaxJobsPerUserLimit"),
                own.user_tres,
                owner.user,
            ),
        )
        for number, (submit, jobs, tres, who) in enumerate(scopes):
            scope = (qos.name, number, who)
            prefix = "" if number == 1 else "QOS"
            for (name, most, reason), kind in ((submit, SUBMITTED), (jobs, JOBS)):
                if most is not None:
                    yield name, most, self._counter("qos", scope, kind), kind, prefix + reason
            for name, most in tres.items():
                if (kind := self._kind(name)) is not None:  # type: ignore[assignment]
                    family = _family(name)
                    reason = (
                        f"QOSGrp{GROUP[family]}",
                        f"Max{OF_ACCOUNT[family]}PerAccount",
                        f"QOSMax{EACH[family].format('PerUser')}",
                    )[number]
                    yield f"{number} {name}", most, self._counter("qos", scope, kind), kind, reason

    def _of_associations(self, owner: Owner) -> Iterator[tuple[str, int, int, int, str]]:
        """Yield the same for the associations of a job. The names are those of the limits of QOS that replace them."""
        for number in self._chain(owner.association):
            own = self.associations[number].limits
            for name, most, kind in (("submit", own.submit, SUBMITTED), ("jobs", own.jobs, JOBS)):
                if most is not None:
                    reason = "AssocGrpSubmitJobsLimit" if kind == SUBMITTED else "AssocGrpJobsLimit"
                    yield name, most, self._counter("association", number, kind), kind, reason
            for name, most in own.tres.items():
                if (kind := self._kind(name)) is not None:  # type: ignore[assignment]
                    reason = f"AssocGrp{GROUP[_family(name)]}"
                    yield f"0 {name}", most, self._counter("association", number, kind), kind, reason
            if number == owner.association:
                chain = [self.associations[each].limits for each in self._chain(number)]
                jobs = next((each.user_jobs for each in chain if each.user_jobs is not None), None)
                if jobs is not None:
                    yield "own_jobs", jobs, self._counter("association", number, JOBS), JOBS, "AssocMaxJobsLimit"
                submit = next((each.user_submit for each in chain if each.user_submit is not None), None)
                if submit is not None:
                    counter = self._counter("association", number, SUBMITTED)
                    yield "own_submit", submit, counter, SUBMITTED, "AssocMaxSubmitJobLimit"

    def _counter(self, what: str, scope: object, kind: int) -> int:
        return self._counters.setdefault((what, scope, kind), len(self._counters))

    def _kind(self, name: str) -> int | None:
        """Return the kind of a trackable resource; None: its limits are not modeled."""
        if name in TRES:
            return TRES[name]
        kind = name.removeprefix("gres/")
        return GRES + self._kinds.index(kind) if kind in self._kinds and name != kind else None


def _equal(accounts: Sequence[str], users: Sequence[str]) -> list[Association]:
    """Return the associations of a workload without a database: all of a level have equal shares."""
    pairs = dict.fromkeys(zip(accounts, users, strict=True))
    names = dict.fromkeys(account for account, _ in pairs if account != ROOT)
    return [
        Association(account=ROOT),
        Association(account=ROOT, user=ROOT),
        *(Association(account=name, parent=ROOT) for name in names),
        *(Association(account=account, user=user or UNKNOWN) for account, user in pairs),
    ]


def _family(name: str) -> str:
    """Return the kind of a trackable resource in reasons."""
    return name if name in TRES else "gres"
