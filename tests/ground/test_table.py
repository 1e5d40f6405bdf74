"""Tables as columns: the conversions between NumPy, Python and Arrow are those of pyarrow, and a frame is separate."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebed.ground import table as tables
from tracebed.ground.table import Table

numbers = st.lists(st.floats(allow_infinity=False) | st.just(float("nan")))
words = st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=3))
arrays = st.one_of(
    numbers.map(lambda values: np.array(values, dtype=np.float64)),
    st.lists(st.integers(-(2**40), 2**40)).map(lambda values: np.array(values, dtype=np.int64)),
    st.lists(st.booleans()).map(lambda values: np.array(values, dtype=bool)),
)


@given(arrays, st.integers(0, 3))
def test_numbers_are_converted_as_by_pyarrow(values: np.ndarray[Any, Any], first: int) -> None:
    made = tables.arrow(values)
    assert made.equals(pa.array(values, from_pandas=True))
    for part in (made, pa.chunked_array([made, made[first:]])):
        back, kept = tables.numbers(part[first:]), part[first:].to_numpy(*([False] if part is made else []))
        assert back.dtype == values.dtype
        np.testing.assert_array_equal(back, kept.astype(values.dtype))


@given(words, st.integers(0, 3))
def test_texts_are_converted_as_by_pyarrow(values: list[str], first: int) -> None:
    made = tables.texts(values)
    assert made.equals(pa.chunked_array([pa.array(values, pa.large_string())]))
    assert tables.strings(made[first:]) == values[first:]
    with_missing = tables.texts(pa.array([None, *values, None], pa.string()))
    assert tables.strings(with_missing[first:]) == [None, *values, None][first:]
    assert tables.missing(with_missing).tolist() == [True, *[False] * len(values), True]
    codes, names = tables.codes_of(tables.concatenated([with_missing, made]))
    assert [names[code] if code >= 0 else None for code in codes] == [None, *values, None, *values]
    assert names == list(dict.fromkeys(values))
    assert [values[row] for row in tables.ascending(made)] == sorted(values)
    for text in {*values, "x"}:
        assert tables.equal(with_missing, text).tolist() == [value == text for value in (None, *values, None)]
    assert tables.among(made, values[:2]).tolist() == [value in values[:2] for value in values]
    places = {text: row for row, text in enumerate(names)}
    assert tables.rows_of([*values, "long"], names).tolist() == [*(places[value] for value in values), -1]


def test_a_table_cannot_be_written_to_and_its_frame_is_copied_before_a_write() -> None:
    times = np.array([1.0, 2.0])
    table = Table({"time": times, "user": np.array(["ann", "bob"], dtype=object)})
    with pytest.raises(ValueError, match="read-only"):
        table["time"][0] = 5.0
    frame = table.frame()
    assert np.shares_memory(frame["time"].to_numpy(), times)
    frame.loc[0, "time"] = 7.0
    frame["user"] = "eve"
    assert times.tolist() == table["time"].tolist() == [1.0, 2.0]
    assert table.frame()["user"].tolist() == table["user"].tolist() == ["ann", "bob"]
    again = pickle.loads(pickle.dumps(table))
    assert [again[name].tolist() for name in again] == [[1.0, 2.0], ["ann", "bob"]]
    assert table.take(np.array([False, True])).text("user", 0) == "bob"


@pytest.mark.parametrize(
    ("values", "dtype", "fits"),
    [
        (pd.Series([1, 2]), "int64", True),
        (pd.Series([1, 2]), "float64", False),
        (pd.Series(["a", None], dtype="str"), "str", True),
        (pd.Series(["a"], dtype=object), "str", False),
        (pd.Series(["a"], dtype="category"), "str", False),
        (pa.chunked_array([[1, None]]), "int64", False),
        (pa.chunked_array([[1.0, None]]), "float64", True),
        (pa.chunked_array([["a"]]), "float64", False),
        (pa.chunked_array([pa.array(["a", "a"]).dictionary_encode()]), "str", False),
        (np.array([1, 2], dtype=np.int32), "int64", True),
    ],
)
def test_a_column_is_kept_only_if_its_values_have_the_type(values: Any, dtype: str, *, fits: bool) -> None:
    assert (tables.column(values, dtype) is not None) is fits
