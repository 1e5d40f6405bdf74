"""The features of nodes that a job demands.

Source (`--constraint`): sbatch(1) of Slurm 22.05. The column `features` of a workload has this form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracebed.ground.errors import InputError

CLOSING = {"(": ")", "[": "]"}


def satisfies(features: Sequence[str], demanded: str) -> bool:
    """Return whether a node with `features` may be one of the nodes of a job that demands `demanded`.

    Names are joined by & (all) or | (one); & comes first, and parentheses are evaluated before. The nodes of a job
    with brackets are of several kinds, `[ib*2&big*1]`, or of any one kind, `[rack1|rack2]`: a node has one of these.
    Counts, such as `ib*2`, are left out.
    """
    if not demanded:
        return True
    tokens = re.findall(r"[^\s&|,()\[\]*]+|[&|,()\[\]]", re.sub(r"\*\d+", "", demanded))
    try:
        found, end = _evaluated(features, tokens, 0, "", False)
        if end <= len(tokens):
            raise ValueError
    except ValueError:
        raise InputError(f"features {demanded!r} are invalid", hint="use names joined by & or |") from None
    return found


def _evaluated(features: Sequence[str], tokens: Sequence[str], at: int, closing: str, either: bool) -> tuple[bool, int]:
    """Return the value of the tokens from `at` to a closing bracket, and the index after it.

    `either`: whether & joins as | does. Raises ValueError if the tokens are not names that are joined.
    """
    found, every = False, True
    while at < len(tokens):
        token = tokens[at]
        if token in CLOSING:
            value, at = _evaluated(features, tokens, at + 1, CLOSING[token], either or token == "[")
        elif token in "&|,)]":
            raise ValueError
        else:
            value, at = token in features, at + 1
        every = every and value
        joint = tokens[at] if at < len(tokens) else ""
        at += 1
        if either or joint in ("|", closing):
            found, every = found or every, True
        if joint == closing:
            return found, at
        if joint not in ("&", ",", "|"):
            raise ValueError
    raise ValueError
