"""Fields after the 18 of SWF, in two families of logs.

AleaNG, Frontier   19 GPUs used    20 soft wall time, s    21 cluster:excl:NxP: N nodes with P cores each
MetaCentrum        19 {nodes}      20 name of the queue    21 N:ppn=P:property#excl, several joined by +

MetaCentrum's logs have the memory of a job in bytes in field 10, and one value in all fields 17 and 18.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import BoolArray, FloatArray, IntArray

NUMBER = r"-?\d{1,15}(?:\.\d*)?"
ALEA = re.compile(rf"({NUMBER})\s+({NUMBER})\s+([^\s:]*):[^\s:]*:(\d{{1,7}})x(\d{{1,5}})")
METACENTRUM = re.compile(r"(\{[^}]*\})(?:\s+(\S+))?(?:\s+(\d\S*))?")
CHUNK = re.compile(r"(\d{1,7})(?::(?:ppn=)?(\d{1,5}))?(?:[:#].*)?")
"""Number of nodes, and cores per node (default 1)."""


class Extension(NamedTuple):
    """The values of the further fields, each of shape (jobs,). Unknown values are 0 nodes, NaN or an empty text."""

    nodes: IntArray
    cores: IntArray
    """Cores per node."""
    gpus: FloatArray
    soft_limit: FloatArray
    cluster: pd.Series[str]
    queue: pd.Series[str]
    node_list: pd.Series[str]
    in_bytes: BoolArray
    """Whether the requested memory is in bytes, of the whole job."""
    of_unknown_family: BoolArray
    """Whether the further fields belong to neither family."""


def read_extension(rests: Sequence[str]) -> Extension:
    """Parse the text after the 18th field of each line."""
    jobs = len(rests)
    nodes, cores = np.zeros(jobs, np.int64), np.ones(jobs, np.int64)
    gpus, soft = np.full(jobs, np.nan), np.full(jobs, np.nan)
    cluster, queue, node_list = [""] * jobs, [""] * jobs, [""] * jobs
    strange, in_bytes = np.zeros(jobs, bool), np.zeros(jobs, bool)
    for job, rest in enumerate(rests):
        if found := ALEA.fullmatch(rest):
            gpus[job], soft[job] = float(found[1]), float(found[2])
            cluster[job], nodes[job], cores[job] = found[3], int(found[4]), int(found[5])
        elif found := METACENTRUM.fullmatch(rest):
            in_bytes[job] = True
            node_list[job], queue[job] = found[1][1:-1].strip(), found[2] or ""
            nodes[job], cores[job] = _chunks(found[3] or "")
        else:
            strange[job] = bool(rest)
    known = (nodes > 0) & (cores > 0)
    return Extension(
        nodes=np.where(known, nodes, 0),
        cores=np.where(known, cores, 1),
        gpus=np.where(gpus > 0, gpus, np.nan),
        soft_limit=np.where(soft > 0, soft, np.nan),
        cluster=pd.Series(cluster, dtype="str"),
        queue=pd.Series(queue, dtype="str"),
        node_list=pd.Series(node_list, dtype="str"),
        in_bytes=in_bytes,
        of_unknown_family=strange,
    )


def _chunks(text: str) -> tuple[int, int]:
    """Return the nodes of a request and its maximum of cores per node; 0 nodes if the request is invalid."""
    found = [CHUNK.fullmatch(chunk) for chunk in text.split("+")]
    if not all(found):
        return 0, 1
    return sum(int(chunk[1]) for chunk in found if chunk), max(int(chunk[2] or 1) for chunk in found if chunk)
