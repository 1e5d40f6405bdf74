"""The agent of a node: `python -P -m tracebed.orchestrator.testbeds.agent`.

The agent reads requests as JSON lines from its standard input, and writes events as JSON lines to its standard output
(protocol: docs/reference/protocol.md). It launches the ranks of jobs by forking, so a launch takes milliseconds and no
interpreter has to start. If the agent is killed, the kernel kills its ranks.

The package runs on nodes that have only Python and the wheel of tracebed, so it imports only the standard library. It
imports few modules of that library, so that many agents start fast.
"""

PROTOCOL = 2  # version of the wire protocol, which must be the same for agent and controller
