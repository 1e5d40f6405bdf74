"""The usage of accounts and users, their fair-share factors, and the counters of limits.

Source: "Fair Tree Fairshare Algorithm", "Classic Fairshare Algorithm" and "Resource Limits" of Slurm's documentation,
and experiments on Slurm 22.05.8 (`record_slurm_accounts.py`): usage is counted in whole seconds when a job ends and at
each computation, and decays by 1 - 0.693 / half-life each second; siblings of equal level share a rank, and so do the
last user of an account and the first one of the next account of equal level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tracebed.slurm.simulation.inputs import JOBS, OF_PARENT, SUBMITTED, Associations, Limits


class FairShare:
    """The usage of users and accounts, and the fair-share factors of the users.

    `usage` is the decayed, billed seconds of each association and those below it.
    """

    def __init__(self, tree: Associations, now: int) -> None:
        """Start without usage at the second `now`."""
        count = len(tree.parent)
        self._tree, self._since = tree, now
        self._decay = 1.0 - 0.693 / tree.half_life_s if tree.half_life_s else 1.0
        self._next = 0
        while self._next < len(tree.resets) and tree.resets[self._next] <= now:
            self._next += 1
        self._above = [0] * count
        self._siblings = [0.0] * count
        """Sum of the shares of the children of each association."""
        self._children: list[list[int]] = [[] for _ in range(count)]
        for each in range(1, count):
            above = tree.parent[each]
            while above and tree.shares[above] == OF_PARENT:
                above = tree.parent[above]
            self._above[each] = above
            self._children[above].append(each)
            if tree.shares[each] != OF_PARENT:
                self._siblings[above] += tree.shares[each]
        self.usage = [0.0] * count
        self.factors = [0.0] * count
        self._rank()

    def resume(self, usage: Sequence[float], factors: Sequence[float], now: int) -> None:
        """Begin at the second `now` with the usage and the factors of the associations."""
        self.usage, self.factors, self._since = [*usage], [*factors], now

    def use(self, user: int, billing: float, start: int, now: int) -> None:
        """Record the use of a job since `start` or the last update, until `now`, in whole seconds. No user: -1."""
        if user < 0:
            return
        seconds = now - max(start, self._since)
        used = billing * (seconds * self._decay**seconds)
        while True:
            self.usage[user] += used
            if not user:
                return
            user = self._tree.parent[user]

    def update(self, running: Iterable[tuple[int, float, int]], now: int) -> None:
        """Let the usage decay until the whole second `now`, add the use since the last update, and compute the factors.

        A running job is (user, billing, start).
        """
        decay = self._decay ** (now - self._since)
        resets = self._tree.resets
        if self._next < len(resets) and resets[self._next] <= now:
            decay = 0.0
            while self._next < len(resets) and resets[self._next] <= now:
                self._next += 1
        self.usage = [used * decay for used in self.usage]
        for user, billing, start in running:
            self.use(user, billing, start, now)
        self._since = now
        self._rank()

    def _rank(self) -> None:
        """Compute the factors."""
        if self._tree.dampening:
            self._classic(0, 1.0, 1.0)
            return
        count = 0
        for is_user in self._tree.is_user:
            count += is_user
        self._ranks(0, count, count, count, tied=False)

    def _ranks(self, account: int, rank: int, shared: int, count: int, *, tied: bool) -> tuple[int, int]:
        """Rank the users below `account` from `rank` down; return the next rank and the last one that was given.

        `tied`: whether the first user has the rank of the user before.
        """
        below = self._children[account]
        levels = {each: self._level(each) for each in below}
        is_user = self._tree.is_user
        before = math.nan
        for each in sorted(below, key=lambda each: (-levels[each], not is_user[each], each)):
            tied = tied or levels[each] == before
            before = levels[each]
            if is_user[each]:
                shared = shared if tied else rank
                self.factors[each] = shared / count
                rank -= 1
            else:
                rank, shared = self._ranks(each, rank, shared, count, tied=tied)
            tied = False
        return rank, shared

    def _level(self, each: int) -> float:
        """Return the level fair-share: the part of the shares of the siblings over the part of their usage."""
        above, shares = self._above[each], self._tree.shares[each]
        if shares == OF_PARENT:
            return math.inf
        if not shares:
            return 0.0
        used = self.usage[each]
        part = used / self.usage[above] if used > 0 else 0.0  # 0, too, if the usage has decayed to almost nothing
        return shares / self._siblings[above] / part if part > 0 else math.inf

    def _classic(self, account: int, shares: float, effective: float) -> None:
        """Compute the classic factors below an account with these normalized shares and effective usage."""
        total = self.usage[0]
        for each in self._children[account]:
            own, usage = shares, effective
            if self._tree.shares[each] != OF_PARENT:
                part = self._tree.shares[each] / self._siblings[account] if self._siblings[account] else 0.0
                own = shares * part
                usage = self.usage[each] / total if total > 0 else 0.0
                if account:
                    usage += (effective - usage) * part
            self.factors[each] = 2.0 ** -(usage / own / self._tree.dampening) if own > 0 else 0.0
            if not self._tree.is_user[each]:
                self._classic(each, own, usage)


class Counters:
    """What running and waiting jobs use of each limit."""

    def __init__(self, limits: Limits) -> None:
        """Start without jobs."""
        self._limits = limits
        self._used = [0] * limits.counters

    def count(self, job: int, amounts: Sequence[int] | None, sign: int, *, jobs: bool = True) -> None:
        """Count a job that begins (1) or ends (-1) to run with `amounts`; None: to be in the system.

        Without `jobs`, the number of running jobs stays.
        """
        limits = self._limits
        if not limits.counters:
            return
        for counter, kind in limits.counted[limits.group[job]]:
            if kind == SUBMITTED:
                self._used[counter] += sign if amounts is None else 0
            elif amounts is not None:
                self._used[counter] += sign * jobs if kind == JOBS else sign * amounts[kind]

    def refused(self, job: int) -> int:
        """Return which limit of its group refuses a job at its submission; -1: none."""
        return self._reached(job, SUBMITTED)

    def held(self, job: int) -> int:
        """Return which limit of running jobs holds a waiting job; -1: none."""
        return self._reached(job, JOBS)

    def exceeded(self, job: int, amounts: Sequence[int]) -> int:
        """Return which limit of resources a job would exceed; -1: none."""
        limits = self._limits
        if limits.counters:
            for number, limit in enumerate(limits.limits[limits.group[job]]):
                if limit.kind >= 0 and self._used[limit.counter] + amounts[limit.kind] > limit.most:
                    return number
        return -1

    def _reached(self, job: int, kind: int) -> int:
        limits = self._limits
        if limits.counters:
            for number, limit in enumerate(limits.limits[limits.group[job]]):
                if limit.kind == kind and self._used[limit.counter] >= limit.most:
                    return number
        return -1
