"""Selection of one machine in logs of several machines, since each machine has its own scheduler."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracebed.converters.workload import BoolArray
from tracebed.ground.errors import InputError
from tracebed.ground.registry import unknown


def one_machine(labels: pd.Categorical, chosen: str | None, where: str) -> tuple[str, BoolArray]:
    """Return the name of the machine (empty if unknown) and the mask of its records, shape (records,).

    Args:
        labels: the name of the machine of each record, shape (records,); empty if unknown.
        chosen: the name of the chosen machine, case-insensitive; None selects the only machine.
        where: the file or folder.

    Raises:
        InputError: the log has several machines and `chosen` is None, or has no records of `chosen`, or names no
            machine.
    """
    counts = np.bincount(labels.codes[labels.codes >= 0], minlength=len(labels.categories))
    present = {str(name): code for code, name in enumerate(labels.categories) if name and counts[code]}
    if chosen is not None and not present:
        raise InputError("the records name no machine", where=where, hint="leave out the name of the machine")
    if chosen is not None:
        name = next((name for name in present if name.lower() == chosen.strip().lower()), None)
        if name is None:
            error = unknown("machine", chosen, list(present))
            raise InputError(error.what, where=where, hint=error.hint)
        return name, np.asarray(labels.codes == present[name], dtype=bool)
    if len(present) > 1:
        what = f"contains jobs of {len(present)} machines: {', '.join(name[:40] for name in [*present][:10])}"
        raise InputError(what, where=where, hint="choose one: convert --machine NAME")
    return next(iter(present), ""), np.ones(len(labels), dtype=bool)
