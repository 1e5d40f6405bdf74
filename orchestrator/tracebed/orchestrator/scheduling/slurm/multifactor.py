"""The priorities of priority/multifactor, with Fair Tree.

Source: "Multifactor Priority Plugin" and "Fair Tree Fairshare Algorithm" of Slurm's documentation; the factor of the
size was checked on Slurm 22.05.8: it uses the smallest number of nodes that the job accepts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def size_factor(nodes: int, cores: int, all_nodes: int, all_cores: int, *, favor_small: bool = False) -> float:
    """Return the factor of the job size, from 0 to 1.

    Args:
        nodes: smallest number of nodes of the job.
        cores: cores of the job.
        all_nodes: nodes of the cluster.
        all_cores: cores of the cluster.
        favor_small: `PriorityFavorSmall`.
    """
    if favor_small:
        return ((all_nodes - nodes) / all_nodes + (all_cores - cores) / all_cores) / 2
    return (nodes / all_nodes + cores / all_cores) / 2


class FairTree:
    """The usage of users and accounts, and the fair-share factors of the users.

    The accounts are children of the root. The root has one user of its own, who never runs a job.

    Attributes:
        factors: fair-share factor of each user.
        usage: decayed core seconds of each user.
    """

    def __init__(
        self, account: Sequence[int], user_share: Sequence[float], account_share: Sequence[float], half_life_s: float
    ) -> None:
        """Start without usage.

        Args:
            account: account of each user.
            user_share: share of each user, relative to the shares of all users of the account.
            account_share: share of each account, relative to the shares of all accounts.
            half_life_s: time in which usage decays to one half, s; 0: no decay.
        """
        self._account, self._user_share, self._account_share = account, user_share, account_share
        self._half_life_s = half_life_s
        self._since = 0.0
        self._ended = [0.0] * len(account)
        self.usage = [0.0] * len(account)
        self.factors = [1.0] * len(account)

    def resume(self, usage: Sequence[float], factors: Sequence[float], now: float) -> None:
        """Begin at `now` with the usage and the factors of the users."""
        self.usage, self.factors, self._since = [*usage], [*factors], now

    def end(self, user: int, cores: int, start: float, now: float) -> None:
        """Record that a job of `user` on `cores` cores, which started at `start`, has ended."""
        self._ended[user] += cores * (now - max(start, self._since))

    def update(self, running: Iterable[tuple[int, int, float]], now: float) -> None:
        """Let the usage decay until `now`, add the use since the last update, and rank the users.

        Args:
            running: (user, cores, start) of each running job.
            now: the instant, s.
        """
        decay = 0.5 ** ((now - self._since) / self._half_life_s) if self._half_life_s else 1.0
        for user in range(len(self.usage)):
            self.usage[user] = self.usage[user] * decay + self._ended[user]
            self._ended[user] = 0.0
        for user, cores, start in running:
            self.usage[user] += cores * (now - max(start, self._since))
        self._since = now
        self._rank()

    def _rank(self) -> None:
        """Rank accounts, then the users of each account, by share over usage. The first user has the largest factor."""
        users_of: list[list[int]] = [[] for _ in self._account_share]
        of_account = [0.0] * len(self._account_share)
        for user, account in enumerate(self._account):
            users_of[account].append(user)
            of_account[account] += self.usage[user]
        total = 0.0
        for used in of_account:  # not sum(), which compensates from Python 3.12 on
            total += used
        levels = [_level(share, used, total) for share, used in zip(self._account_share, of_account, strict=True)]
        rank, count = len(self.usage), len(self.usage) + 1
        for account in sorted(range(len(levels)), key=lambda account: -levels[account]):
            users = users_of[account]
            level = {user: _level(self._user_share[user], self.usage[user], of_account[account]) for user in users}
            before = None
            for user in sorted(users, key=lambda user: -level[user]):
                tied = before is not None and level[user] == level[before]
                self.factors[user] = self.factors[before] if before is not None and tied else rank / count
                before = user
                rank -= 1


def _level(share: float, used: float, total: float) -> float:
    """Return the level fair-share: the share over the part of the usage."""
    part = used / total if used > 0 else 0.0  # 0, too, if the usage has decayed to almost nothing
    return share / part if part > 0 else math.inf
