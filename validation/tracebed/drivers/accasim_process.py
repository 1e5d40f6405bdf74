"""The process in which AccaSim runs: `python -m tracebed.drivers.accasim_process CLASS`.

It reads `workload.swf` and `system.json` in the current folder, and writes the folder `output`. AccaSim 1.1.3 needs
`collections.Mapping`, which Python 3.10 removed, and processes that are forked.
"""

from __future__ import annotations

import collections
import collections.abc
import multiprocessing
import sys


def main(policy: str) -> None:
    """Simulate with the class `policy` of `accasim.base.scheduler_class`."""
    collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]
    multiprocessing.set_start_method("fork")
    from accasim.base import scheduler_class
    from accasim.base.allocator_class import FirstFit
    from accasim.base.simulator_class import Simulator

    dispatcher = getattr(scheduler_class, policy)(FirstFit())
    options = {"RESULTS_FOLDER_PATH": "output", "show_statistics": False, "LOG_LEVEL": "ERROR"}
    Simulator("workload.swf", "system.json", dispatcher, **options).start_simulation()


if __name__ == "__main__":
    main(sys.argv[1])
