"""Logs of several machines: one is chosen, or the log is refused. No scheduler ran the jobs of two machines as one."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracebed.converters.workload import BoolArray
from tracebed.errors import InputError
from tracebed.registry import unknown


def one_machine(labels: pd.Categorical, chosen: str | None, where: str) -> tuple[str, BoolArray]:
    """Return the name of the machine (empty if unknown), and which records are of it.

    Args:
        labels: the name of the machine of each record, shape (records,); empty if the log does not tell.
        chosen: the machine that the caller names, in upper or lower case; None: the only one.
        where: the file or folder.

    Raises:
        InputError: there are several machines and none is chosen, or the log has no records of the chosen one.
    """
    counts = np.bincount(labels.codes[labels.codes >= 0], minlength=len(labels.categories))
    present = {str(name): code for code, name in enumerate(labels.categories) if name and counts[code]}
    if chosen is not None:
        name = next((name for name in present if name.lower() == chosen.strip().lower()), None)
        if name is None:
            error = unknown("jobs of a machine", chosen, list(present))
            raise InputError(error.what, where=where, hint=error.hint)
        return name, np.asarray(labels.codes == present[name], dtype=bool)
    if len(present) > 1:
        what = f"holds jobs of {len(present)} machines: {', '.join(name[:40] for name in [*present][:10])}"
        raise InputError(what, where=where, hint="choose one: convert or clean --machine NAME")
    return next(iter(present), ""), np.ones(len(labels), dtype=bool)
