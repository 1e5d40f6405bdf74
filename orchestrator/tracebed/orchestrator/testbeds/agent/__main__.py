"""The command of the agent, and with `--attach SOCKET` the command that joins another agent's socket."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int | str:
    """Run the agent on standard input and output, or attach them to a running agent. Return the status."""
    if arguments:
        if len(arguments) != 2 or arguments[0] != "--attach":
            return "usage: python -P -m tracebed.orchestrator.testbeds.agent [--attach SOCKET]"
        from tracebed.orchestrator.testbeds.agent.attaching import join  # starts faster than an agent

        return join(arguments[1])
    gc.disable()  # nothing of what the start makes is garbage; `Agent.run` enables it
    from tracebed.orchestrator.testbeds.agent.agent import Agent

    os.umask(0o077)  # only the user may read the output and heartbeats of jobs
    reader, writer = os.dup(0), os.dup(1)  # other output than messages goes to standard error
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # forking is safer without threads of OpenBLAS
    Agent(reader, writer).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
