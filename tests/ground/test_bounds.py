"""The check of numbers: ranges with one bound, two or none, and whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracebed.ground import bounds
from tracebed.ground.errors import InputError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "least", "most", "whole", "hint"),
    [
        (-1, 0, bounds.MAX_SECONDS, False, "give a number from 0 to 1,000,000,000"),
        (1, 0, 0.5, False, "give a number from 0 to 0.5"),
        (0, 1, None, False, "give a number of at least 1"),
        (3, None, 2, False, "give a number of at most 2"),
        (NAN, None, None, False, "give a number"),
        (INF, None, None, False, "give a number"),
        (True, None, None, False, "give a number"),
        ("1", None, None, False, "give a number"),
        (2.0, 0, 9, True, "give a whole number from 0 to 9"),
        (10**400, None, None, True, "give a whole number"),
    ],
)
def test_what_is_accepted_is_said(value: Any, least: float | None, most: float | None, whole: bool, hint: str) -> None:
    with pytest.raises(InputError) as error:
        bounds.check("size", value, least, most, whole=whole)
    assert (error.value.what, error.value.hint) == (f"size is {value!r}", hint)


def test_a_number_in_its_range_is_accepted() -> None:
    for value in (0, 5, np.int64(3)):
        bounds.check("size", value, 0, 5, whole=True)
    for number in (0.5, np.float32(0.5), -bounds.MAX_EXACT):
        bounds.check("size", number, None, None)
