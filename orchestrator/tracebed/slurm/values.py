"""What the facts of a cluster of Slurm share: their base class, and Slurm's times."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

from tracebed.ground.errors import InputError

MINUTE_S = 60
UNLIMITED = ("infinite", "unlimited", "-1")


class Fact(BaseModel):
    """Base of the facts of a cluster: immutable, of known fields only."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def duration_s(text: str, where: str) -> float:
    """Return a time of Slurm, s; 0: no limit. Forms: minutes, min:s, h:min:s, days-h, days-h:min, days-h:min:s."""
    if text.lower() in UNLIMITED:
        return 0.0
    found = re.fullmatch(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", text)
    if found is None:
        raise InputError(
            f"{text[:40]!r} is not a time", where=where, hint="write minutes, or days-hours:minutes:seconds"
        )
    parts = [int(part) for part in found.groups()[1:] if part is not None]
    if found[1] is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return float(((int(found[1]) * 24 + hours) * 60 + minutes) * 60 + seconds)
    if len(parts) == 3:
        return float((parts[0] * 60 + parts[1]) * 60 + parts[2])
    return float(parts[0] * MINUTE_S + (parts[1] if len(parts) > 1 else 0))
