"""The nodes of a run: `tracebed.machine.nodes`."""

from tracebed.machine.nodes import NodeFacts as NodeFacts
from tracebed.machine.nodes import nodes_of as nodes_of
from tracebed.machine.nodes import ranges as ranges
