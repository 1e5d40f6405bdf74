"""Tables as columns: the conversions between NumPy, Python and Arrow are those of pyarrow, and a frame is separate."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracebed.ground import parquet_file
from tracebed.ground import table as tables
from tracebed.ground.parquet_file import read_frame
from tracebed.ground.table import Table

numbers = st.lists(st.floats(allow_infinity=False) | st.just(float("nan")))
words = st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=3))
arrays = st.one_of(
    numbers.map(lambda values: np.array(values, dtype=np.float64)),
    st.lists(st.integers(-(2**40), 2**40)).map(lambda values: np.array(values, dtype=np.int64)),
    st.lists(st.booleans()).map(lambda values: np.array(values, dtype=bool)),
)


@given(st.lists(st.tuples(st.sampled_from([0.5, 2.0, float("nan")]), st.integers(-2, 2), st.integers(0, 1))))
def test_rows_with_equal_values_are_one_group(rows: list[tuple[float, int, int]]) -> None:
    columns = [np.array([row[at] for row in rows], dtype=kind) for at, kind in enumerate((float, int, int))]
    _, first, group = tables.distinct(tables.grouped(*columns))
    keys = [*map(repr, rows)]
    assert [keys[row] for row in first] == [*dict.fromkeys(keys)]
    assert [keys[first[own]] for own in group] == keys


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


@given(st.lists(st.text(max_size=30)), st.integers(0, 3))
def test_hashes_of_texts_differ_unless_a_text_appears_twice(values: list[str], first: int) -> None:
    assert tables.all_differ(tables.texts(values)[first:]) == (len({*values[first:]}) == len(values[first:]))
    assert not tables.all_differ(tables.texts(["x" * 65]))


times = st.lists(st.sampled_from([0.0, -0.0, 1.0, 1.5, -3.0, 2.0**31, -(2.0**31), 1e300, float("nan")]))


@given(st.one_of(arrays, times.map(np.array), words.map(tables.texts)), st.integers(0, 3), st.data())
def test_a_packed_column_has_the_same_values_and_rows(values: Any, first: int, data: st.DataObject) -> None:
    rows = np.array(
        data.draw(st.lists(st.integers(0, len(values) - 1)) if len(values) else st.just([])), dtype=np.int64
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "PACKED_FROM", 1)
        patch.setattr(tables, "BLOCK", 3)
        plain = Table({"x": values})
        table = plain.packed()
        assert table.arrow().equals(plain.arrow())
        assert [block.arrow().to_pylist() for block in table.blocks()] == [
            block.arrow().to_pylist() for block in plain.blocks()
        ]
        for other, same in ((table.rows(first, 9), plain.rows(first, 9)), (table.take(rows), plain.take(rows))):
            assert other.raw("x").__class__ is same.raw("x").__class__
            assert other.arrow().equals(same.arrow())
        if not isinstance(values, np.ndarray):
            for text in {*tables.strings(values), "none"}:
                assert table.equal("x", text).tolist() == plain.equal("x", text).tolist()
            known = Table({"x": tables.texts(list(dict.fromkeys(tables.strings(values))))})
            numbered = table.numbered("x", known)
            assert numbered.arrow().equals(plain.arrow())
            assert numbered.rows_in("x", known).tolist() == plain.rows_in("x", known).tolist()


def test_columns_of_few_values_are_packed() -> None:
    many = tables.PACKED_FROM
    table = Table({"n": np.arange(many) % 100, "t": np.arange(many) * 1.0, "u": tables.texts(["a", "b"] * (many // 2))})
    kept = [table.packed().kept(name) for name in table]
    assert [column.numbers.dtype for column in kept] == [np.int8, np.int32, np.int8]
    assert not isinstance(Table({"t": np.arange(many) + 0.5}).packed().kept("t"), tables.Packed)


@pytest.mark.parametrize("group", [3, 4])
def test_numbers_in_a_file_have_the_values_and_rows_of_packed_ones(
    group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay in the file if its row groups are blocks (of three rows here)."""
    monkeypatch.setattr(tables, "PACKED_FROM", 1)
    for module in (tables, parquet_file):
        monkeypatch.setattr(module, "BLOCK", 3)
    monkeypatch.setattr(parquet_file, "PACKED_FROM", 1)
    plain = Table(
        {"n": np.arange(8) % 5, "t": np.array([0.0, 1, np.nan, 3, 4, 5, 6, 7]), "u": tables.texts("abababab")}
    )
    pq.write_table(plain.arrow(), tmp_path / "t.parquet", row_group_size=group)
    table = parquet_file.in_file(plain.packed(), tmp_path / "t.parquet")
    assert isinstance(table.kept("n").numbers, parquet_file.Stored) is (group == 3)
    for rows in (np.array([1, 2, 6, 7]), np.array([7, 0, 3]), np.arange(8) % 3 == 0, np.arange(0)):
        pairs = [(table.take(rows), plain.take(rows))]
        pairs += [(table.rows(a, b), plain.rows(a, b)) for a, b in ((0, 8), (2, 7), (3, 6), (5, 99), (4, 4))]
        pairs += zip(table.blocks(), plain.blocks(), strict=True)
        pairs += [(table.rows(2, 8).take(np.array([0, 5])), plain.rows(2, 8).take(np.array([0, 5])))]
        pairs += [(pickle.loads(pickle.dumps(table)), plain)]
        for kept, same in pairs:
            assert kept.arrow().equals(same.arrow())
            assert {name: kept[name].dtype for name in "nt"} == {"n": np.int64, "t": np.float64}


def test_a_large_file_has_the_frame_of_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        "whole": pa.array([1, 2, 3]),
        "some": pa.array([1, None, 3]),
        "time": pa.array([1.0, None, 2.5]),
        "is_late": pa.array([True, False, True]),
        "is_known": pa.array([True, None, False]),
        "text": pa.array(["a", "b", "a"]),
        "word": pa.array(["a", None, "b"]),
        "coded": pa.array(["a", "b", "a"]).dictionary_encode(),
        "day": pa.array([0, 1, None], pa.timestamp("s")),
        "small": pa.array([1, 2, 3], pa.int8()),
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    small = read_frame(path, hint="")
    for module in (tables, parquet_file):
        monkeypatch.setattr(module, "PACKED_FROM", 1)
    pd.testing.assert_frame_equal(read_frame(path, hint=""), small)


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
