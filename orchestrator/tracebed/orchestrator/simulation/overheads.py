"""Overheads of a real system: the times of a job in addition to its work."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Overheads:
    """Overheads of a real system: wall seconds in a setup, trace seconds (times the speed) in a simulator.

    Args:
        launch_s: time from the allocation of a job with one rank to the beginning of its work. The job is not resized
            before.
        end_s: time from the end of the work of a job with one rank to the release of its nodes.
        reconfiguration_s: pause of a job when a resize takes effect.
        launch_join_s: additional launch time of jobs with several ranks: the second rank has to join.
        launch_rank_s: additional launch time for each rank after the second.
        end_rank_s: additional end time for each further rank.
        expand_s: time from the decision of an expansion by one node until the new rank has joined. The expansion takes
            effect at a malleability point after that.
        expand_rank_s: additional time for each further new rank.
        release_s: time from the malleability point of a shrink until the released nodes are idle.
        grain_s: > 0: duration of an iteration of a job on the requested nodes. A resize, and a change of the cores on
            shared nodes, takes effect at the end of an iteration, as in a replay: a job has `run_time / grain_s`
            iterations (rounded, at least one) of equal work.
    """

    launch_s: float = 0.0
    end_s: float = 0.0
    reconfiguration_s: float = 0.0
    launch_join_s: float = 0.0
    launch_rank_s: float = 0.0
    end_rank_s: float = 0.0
    expand_s: float = 0.0
    expand_rank_s: float = 0.0
    release_s: float = 0.0
    grain_s: float = 0.0

    def times(self, factor: float) -> Overheads:
        """Return all overheads multiplied by `factor`."""
        return Overheads(**{name: value * factor for name, value in asdict(self).items()})

    def launch(self, ranks: int) -> float:
        """Return the launch time of a job with `ranks` ranks, s."""
        if ranks == 1:
            return self.launch_s
        return self.launch_s + (self.launch_join_s + self.launch_rank_s * (ranks - 2))

    def end(self, ranks: int) -> float:
        """Return the end time of a job with `ranks` ranks, s."""
        return self.end_s + self.end_rank_s * (ranks - 1)

    def expand(self, ranks: int) -> float:
        """Return the time until `ranks` new ranks have joined, s; 0 for 0 ranks."""
        return self.expand_s + self.expand_rank_s * (ranks - 1) if ranks > 0 else 0.0
