"""Texts of generic resources: of `--gres`, of NodeName lines, and in trackable resources.

Source: slurm.conf(5), gres.conf(5) and sbatch(1) of Slurm 22.05, and `sbatch --gres=bw:2K` on Slurm 22.05.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tracebed.converters.formats.tools.columns import relabel
from tracebed.converters.workload import BoolArray, FloatArray

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = {"": 1, **{suffix: 1024**power for power, suffix in enumerate("kmgtp", 1)}}
COUNT = re.compile(r"(\d+(?:\.\d+)?)([kmgtp]?)", re.IGNORECASE)
NO_CONSUME = "no_consume"
UNEVEN = "jobs with unequal generic resources on their nodes, counts rounded up"


def gres_count(text: str) -> int | None:
    """Return a count such as `2` or `4K` (4,096); None: the text is a name, such as the type `a100`."""
    match = COUNT.fullmatch(text)
    return None if match is None else round(float(match[1]) * SUFFIXES[match[2].lower()])


def gres_items(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, type (empty: any) and count of each item of a text such as `gpu:a100:2(S:0),bw:no_consume:4G,nvme`.

    An item without a count counts as 1. The prefixes of scontrol and sacct, `gres:` and `gres/`, are left out.
    """
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *words = re.sub(r"(?i)^(?:per_node:|gres[:/])+", "", item.strip()).replace("=", ":").split(":")
        words = [word for word in words if word and word.lower() != NO_CONSUME]
        count = gres_count(words[-1]) if words else None
        kind = words[0] if len(words) > (count is not None) else ""
        if name and name.lower() not in ("none", "null", "(null)"):
            yield name, kind, 1 if count is None else count


def gpus_on_nodes(gpus: FloatArray, nodes: FloatArray) -> tuple[pd.Categorical, BoolArray]:
    """Return the GPUs on each node of a job, as `--gres` writes them, and the mask of the uneven ones, rounded up.

    `gpus` on all `nodes` of a job, both of shape (jobs,), may be NaN: unknown. A job without GPUs has an empty text.
    """
    known = (gpus > 0) & (nodes > 0)
    per_node = np.divide(gpus, nodes, out=np.zeros(len(gpus)), where=known)
    counts, codes = np.unique(np.ceil(per_node).astype(np.int64), return_inverse=True)
    return relabel(codes, [f"gpu:{count}" if count else "" for count in counts.tolist()]), np.ceil(per_node) != per_node
