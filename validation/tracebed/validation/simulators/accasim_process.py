"""The process in which AccaSim runs: `python -m tracebed.validation.simulators.accasim_process CLASS`.

It reads `workload.swf` and `system.json` in the current folder, and writes the folder `output`. AccaSim 1.1.3 needs
`collections.Mapping`, which Python 3.10 removed, and processes that are forked.
"""

from __future__ import annotations

import collections
import collections.abc
import multiprocessing
import sys
from typing import Any


def main(policy: str) -> None:
    """Simulate with the class `policy` of `accasim.base.scheduler_class`."""
    collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    multiprocessing.set_start_method("fork")
    from accasim.base import scheduler_class
    from accasim.base.allocator_class import FirstFit
    from accasim.base.resource_manager_class import Resources
    from accasim.base.simulator_class import Simulator

    class OfOneCore(FirstFit):  # type: ignore[misc]  # not typed
        """`FirstFit` for nodes with one core and no other resource."""

        def _adjust_resources(self, nodes: list[str] | None = None) -> None:
            if nodes:
                super()._adjust_resources(nodes)
            else:
                self.sorted_keys = [*self.avl_resources]

    def availability(self: Any) -> dict[str, dict[str, int]]:
        """Return node -> its free resources, without the full nodes, which AccaSim would copy and skip each time."""
        return {node: free.copy() for node, free in self._current_capacity.items() if free["core"]}

    Resources.availability = availability
    dispatcher = getattr(scheduler_class, policy)(OfOneCore())
    options = {"RESULTS_FOLDER_PATH": "output", "show_statistics": False, "LOG_LEVEL": "ERROR"}
    Simulator("workload.swf", "system.json", dispatcher, **options).start_simulation()


if __name__ == "__main__":
    main(sys.argv[1])
