"""The choice of the backend of a program."""

from __future__ import annotations

from typing import Literal, get_args

from tracebed.benchmarks.backends.affinity import AffinityBackend
from tracebed.benchmarks.backends.base import Backend
from tracebed.benchmarks.backends.dlb import DlbBackend
from tracebed.benchmarks.backends.native import NativeBackend
from tracebed.benchmarks.node_table import Table
from tracebed.registry import one_of

BackendName = Literal["native", "affinity", "dlb"]
"""`native`: programs that poll the table of their node; `affinity`: any programs; `dlb`: programs that use DLB."""


def backend(name: BackendName, table: Table) -> Backend:
    """Return a backend.

    Args:
        name: name of the backend.
        table: the table of the node. Programs with the backends `native` and `affinity` may share its CPUs.

    Raises:
        InputError: the name is unknown.
        TestbedError: the backend is not installed.
    """
    one_of("backend", name, get_args(BackendName))
    if name == "affinity":
        return AffinityBackend(table)
    if name == "dlb":
        return DlbBackend(f"tracebed-{table.path.name}")
    return NativeBackend(table)
