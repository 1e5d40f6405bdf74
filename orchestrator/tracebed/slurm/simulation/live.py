"""The inputs of a simulation that begins with the state of a live Slurm cluster."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean

from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.slurm.machine import MINUTE_S
from tracebed.slurm.rules.conditions import Conditions, arrays_of, dependencies_of, groups_of
from tracebed.slurm.rules.entries import Entries
from tracebed.slurm.rules.limits import amounts_of
from tracebed.slurm.rules.multifactor import Associations, size_factor
from tracebed.slurm.rules.resources import ALL, Request
from tracebed.slurm.simulation.accounts import NONE, Accounting, Owner
from tracebed.slurm.simulation.events import heterogeneous, licenses_in, preemption_of, with_bookings
from tracebed.slurm.simulation.factors import Factors
from tracebed.slurm.simulation.inputs import Inputs
from tracebed.slurm.simulation.prediction import choice_of, memory_of, placement, resources_of
from tracebed.slurm.state import ClusterState, LiveJob


class LiveInputs:
    """The requests, users and priorities of the jobs of a cluster whose state is known.

    Time 0 of the inputs is `zero` on the clock of the cluster.
    """

    def __init__(self, state: ClusterState, zero: float) -> None:
        self._state, self._zero, machine = state, zero, state.machine
        self._kinds = machine.gres
        self._empty = resources_of(machine, self._kinds)
        self._placed = placement(machine, self._empty)
        self._nodes = {name: number for number, (name, _) in enumerate(machine.nodes)}
        self._down = mask_of([self._nodes[name] for name in state.unavailable])
        self._most = max(partition.factor for partition in machine.partitions) or 1

    def request(self, job: LiveJob) -> Request | None:
        """Return the request of a job; None: no available nodes of its partition can run it.

        Raises:
            InputError: the features of a waiting job are invalid.
        """
        machine, number = self._state.machine, self._state.machine.partition(job.partition)
        if number is None:
            return None
        partition, wanted = machine.partitions[number], machine.demanded(job.gres)
        memory = {"memory": int(job.memory_mib or ALL), "by_core": job.by_core} if math.isfinite(job.memory_mib) else {}
        request = Request(
            cores=sum(job.held.values()) or job.cores,
            per_node=0 if job.held else job.per_node,
            fewest=len(job.held) or job.fewest,
            whole=job.whole or partition.exclusive or not machine.shared,
            gres=tuple(wanted.get(kind, 0) for kind in self._kinds),
            **({**memory_of(math.nan, partition, machine), **memory} if machine.memory else {}),
            **choice_of(partition, in_cpus=job.start is not None),
        )
        if job.held:
            return request._replace(eligible=mask_of([self._nodes[name] for name in job.held]))
        fitting = self._placed(number, job.features, request) if not wanted.keys() - {*self._kinds} else None
        if fitting is None or isinstance(fitting, str):
            return None
        if not self._down:
            return fitting
        fitting = fitting._replace(eligible=fitting.eligible & ~self._down)
        return fitting if self._empty.choose(fitting, fitting.eligible) else None

    def never(self, job: LiveJob, request: Request) -> str:
        """Return the limit of a QOS with which a job never starts; empty: none."""
        accounting, factors = self._rules
        number = self._state.machine.partition(job.partition) or 0
        amounts = amounts_of(request, None, self._empty, factors.billing[number], factors.most)
        return accounting.never(_owner(accounting, job, number), amounts, job.limit_s)

    @cached_property
    def _rules(self) -> tuple[Accounting, Factors]:
        """The limits and factors for the jobs of the state."""
        machine, jobs = self._state.machine, self._state.jobs
        accounting = Accounting(machine, self._kinds, [job.account for job in jobs], [job.user for job in jobs])
        return accounting, Factors(machine, self._kinds, accounting)

    def of(self, jobs: Sequence[LiveJob], requests: Sequence[Request], live: int, first: Sequence[int]) -> Inputs:
        """Return the inputs of jobs whose run times are not yet known.

        Args:
            jobs: the jobs: those of the state, then their entries of further partitions, then later ones, whose
                priorities follow from the rules.
            requests: the request of each.
            live: the number of the jobs of the state. The simulation ends when they have started.
            first: of each job of the state and each entry, the job; the others are jobs of their own.
        """
        state, machine, weights = self._state, self._state.machine, self._state.machine.weights
        users = _Users(state, jobs)
        accounting = Accounting(machine, self._kinds, [job.account for job in jobs], [job.user for job in jobs])
        factors = Factors(machine, self._kinds, accounting)
        known = len(first)
        fair = weights.fairshare if state.shares else 0
        partition = [machine.partition(job.partition) or 0 for job in jobs]
        static = [self._static(request, number) for request, number in zip(requests, partition, strict=True)]
        fixed = [
            self._fixed(job, fair * users.factors[users.of_job[k]], static[k] - static[first[k]])
            if k < known
            else static[k]
            for k, job in enumerate(jobs)
        ]
        beyond: dict[str, list[float]] = defaultdict(list)  # of a user: by which priorities exceed what is static
        for k, job in enumerate(jobs[:live]):
            if job.start is None:
                for name in (job.user, ""):
                    beyond[name].append(fixed[k] - static[k])
        for k in range(known, len(jobs)):
            more = beyond.get(jobs[k].user) or beyond.get("")
            fixed[k] += fmean(more) if more else 0.0
        count = len(jobs)
        own = [*first, *range(known, count)]
        owners = [_owner(accounting, job, number) for job, number in zip(jobs, partition, strict=True)]
        group = [accounting.group(owner) for owner in owners]
        ids = [job.id for job in jobs]
        inputs = Inputs(
            submit=[max(job.waits_since, job.eligible) - self._zero for job in jobs],
            run_time=[math.nan] * count,
            limit=[minutes(job.limit_s) for job in jobs],
            launch_s=[0.0] * count,
            overrun_s=[math.nan] * count,
            over_limit_s=[float(machine.partitions[number].over_limit_s) for number in partition],
            end_s=[0.0] * count,
            requests=requests,
            partition=partition,
            user=users.numbers,
            fixed=fixed,
            tier=[each.tier for each in machine.partitions],
            free=self._empty,
            associations=replace(users.tree, half_life_s=weights.half_life_s),
            association=users.of_job,
            usage_factor=[accounting.usage_factor(owner) for owner in owners],
            billing=factors.billing,
            billing_most=factors.most,
            limits=accounting.limits(group),
            reserve=[accounting.reserves(owner) for owner in owners],
            age=weights.age,
            max_age_s=weights.max_age_s,
            fairshare=fair,
            period_s=weights.period_s,
            first_period_s=0.0,
            kill_wait_s=machine.kill_wait_s,
            job_depth=machine.partition_job_depth,
            part_test=machine.bf_max_job_part,
            user_part_test=machine.bf_max_job_user_part,
            preemption=preemption_of(machine, partition, [job.qos for job in jobs]),
            conditions=_conditions(jobs, own, live, kill_invalid=machine.kill_invalid_depend),
            arrays=arrays_of([job.array for job in jobs], ids) if any(job.array for job in jobs) else None,
            array_reservations=machine.bf_max_job_array_resv,
            complete_wait_s=machine.complete_wait_s,
            licenses=licenses_in([job.licenses for job in jobs], ids, machine),
            entries=Entries.of(own, one_reservation=machine.bf_one_resv_per_job),
            begin_s=state.instant - self._zero,
            held=[{self._nodes[name]: cores for name, cores in job.held.items()} for job in jobs],
            since=[math.nan if job.start is None else job.start - self._zero for job in jobs],
            usage=users.usage,
            factors=users.factors,
            shortest=[minutes(job.shortest_s) if job.shortest_s else 0 for job in jobs],
            deadline=[math.inf if job.deadline is None else job.deadline - self._zero for job in jobs],
            together=heterogeneous([job.whole_id if job.start is None else "" for job in jobs]),
            watched=live,
        )
        if not state.reservations:
            return inputs
        cluster = state.conf.parameters["cluster"]
        policy = Slurm(cluster=cluster, reservations=state.reservations, epoch_s=self._zero)
        return with_bookings(inputs, [job.reservation for job in jobs], machine, policy)

    def _static(self, request: Request, partition: int) -> float:
        """Return the parts of a priority that come from the partition and the size of the job."""
        weights, all_nodes, all_cores = self._state.machine.weights, len(self._nodes), sum(self._empty.total)
        size = size_factor(request.fewest, request.cores, all_nodes, all_cores, favor_small=weights.favor_small)
        factor = self._state.machine.partitions[partition].factor / self._most
        return weights.partition * factor + weights.job_size * size

    def _fixed(self, job: LiveJob, of_share: float, more: float) -> float:
        """Return the part of the priority of a job that does not change: the present one without age and fair share.

        `more`: by how much that of an entry of another partition exceeds it.
        """
        weights = self._state.machine.weights
        waited = 0.0 if job.dependency else max(0.0, self._state.instant - job.waits_since)
        known = self._state.factors.get(job.number, (weights.age * min(1.0, waited / weights.max_age_s), of_share))
        return job.priority + more - known[0] - (known[1] if self._state.shares else 0.0)


def _owner(accounting: Accounting, job: LiveJob, partition: int) -> Owner:
    """Return the association and QOS of a job that Slurm has accepted."""
    found = accounting.owner(job.account, job.user, job.qos, partition)
    return found if isinstance(found, Owner) else Owner(NONE, job.user, job.account, job.qos, "")


def _conditions(jobs: Sequence[LiveJob], own: Sequence[int], live: int, *, kill_invalid: bool) -> Conditions | None:
    """Return the conditions of the jobs; None: there are none. `own`: the first entry of each job."""
    if not any(job.dependency for job in jobs):
        return None
    ids = [job.id if k < live else "" for k, job in enumerate(jobs)]
    arrays = [job.array.partition("%")[0] if k < live else "" for k, job in enumerate(jobs)]
    nothing = Conditions.none(len(jobs))
    texts = [job.dependency for job in jobs]
    groups = groups_of([job.user for job in jobs], [job.name for job in jobs], texts)
    found, any_of = dependencies_of(texts, ids, arrays, groups)
    return replace(
        nothing,
        group=[group if k < live else -1 for k, group in enumerate(groups)],
        dependencies=[found[first] for first in own],
        any_of=[any_of[first] for first in own],
        kill_invalid=kill_invalid,
    )


def minutes(limit_s: float) -> int:
    """Return a time limit in whole minutes, s."""
    return max(1, math.ceil(limit_s / MINUTE_S - 1e-6)) * MINUTE_S


class _Users:
    """The associations of a state and of jobs, in the form of `Inputs`.

    Attributes:
        of_job: association of each job.
        numbers: number of the user of each job.
        tree: the accounts, below the root, and their users.
        usage, factors: of each association.
    """

    def __init__(self, state: ClusterState, jobs: Sequence[LiveJob]) -> None:
        shares = {(share.account, share.user): share for share in state.shares}
        pairs = dict.fromkeys([*shares, *((job.account, job.user) for job in jobs)])
        of_account = {share.account: share.account_share for share in state.shares}
        accounts = dict.fromkeys(account for account, _ in pairs)
        first = 2 + len(accounts)  # after the root, its user and the accounts
        account = {name: 2 + number for number, name in enumerate(accounts)}
        known = [shares.get(pair) for pair in pairs]
        own = {pair: first + number for number, pair in enumerate(pairs)}
        names: dict[str, int] = {}
        self.of_job = [own[job.account, job.user] for job in jobs]
        self.numbers = [names.setdefault(job.user, len(names)) for job in jobs]
        self.tree = Associations(
            parent=[0, 0, *(0 for _ in accounts), *(account[name] for name, _ in pairs)],
            shares=[
                *(1.0, 1.0, *(of_account.get(name, 1.0) for name in accounts)),
                *(share.share if share else 1.0 for share in known),
            ],
            is_user=[False, True, *(False for _ in accounts), *(True for _ in pairs)],
        )
        self.usage = [*(0.0 for _ in range(first)), *(share.usage if share else 0.0 for share in known)]
        for (name, _), number in own.items():
            self.usage[account[name]] += self.usage[number]
            self.usage[0] += self.usage[number]
        self.factors = [*(0.0 for _ in range(first)), *(share.factor if share else 1.0 for share in known)]
