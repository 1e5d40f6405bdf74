"""ElastiSim (TU Darmstadt): a driver that runs it with the policies of tracebed, and a reader of its output."""

from tracebed.drivers.elastisim.driver import SUPPORTED, simulate
from tracebed.drivers.elastisim.program import version
from tracebed.drivers.elastisim.reader import read, recognizes
from tracebed.validation.simulators.simulator import ExternalSimulator

SIMULATOR = ExternalSimulator(
    name="elastisim",
    title="ElastiSim (SimGrid): drive the program, or read job_statistics.csv and its related files",
    read=read,
    recognizes=recognizes,
    simulate=simulate,
    version=version,
    supports=SUPPORTED,
)
"""ElastiSim (SimGrid): drive the program, or read job_statistics.csv and its related files."""
