"""Seeded mutations of files: of bytes and lines of any file, and of values in JSON, YAML, Parquet and SQLite."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

Mutate = Callable[[random.Random, bytes], bytes]
STRANGE = (
    *(b"", b"-1", b"-5", b"0", b"1e12", b"1000000000000", b"99999999999999999999", b"1e308", b"nan", b"inf", b"-0.5"),
    *(b"Unknown", b"None", b"08.11.2022 22:04", b"11/8/22 10:04 PM", b"1,5", b"\xff\xfe", b"\0"),
    *(b'"', b"'", b"{", b"["),
    *(b"CANCELLED by 7", b"UNLIMITED", b"1-00:00:00", "Zürich".encode(), b"x" * 70_000),
)
"""What stands in a field where something else should: numbers of no sense, dates of another locale, rubbish."""
NUMBERS = [
    *(b"NaN", b"nan", b"Infinity", b"-Infinity", b"inf", b".inf", b".nan", b"1e308", b"-1e308", b"1e999", b"1e-320"),
    *(b"-1", b"0", b"-0.0", b"0x10", b"1_000", b"010", b"", b"9" * 30, b"9" * 5000, b"2147483648", b"1e9", b"1,5"),
    *("\u0661\u0662".encode(), b"1e9999999", b"true", b"1+1", b"1 2"),
]
"""Numbers of no sense, and what is no number."""
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**400, 0.5, 1e308, -1e308, 1e9, float("nan")),
    *(float("inf"), -float("inf"), "", " ", "x", "NaN", "0x10", "-1", "../..", "/dev/zero", "a\nb", "\x00", "\ud800"),
    *([], [[]], {}, {"x": 1}, [None], [1, "a"], "x" * 100_000, list(range(2000)), "\u202e", "\x1b[31m"),
]
"""Values of wrong types and sizes."""
NUMBER = re.compile(rb"(?<![\w.])-?\d+(\.\d+)?([eE][-+]?\d+)?(?![\w.])")
WORD = re.compile(rb"[\w.+-]+")
KINDS = {".json": "json", ".yaml": "yaml", ".parquet": "parquet", ".sqlite": "sqlite"}


def mutated(rng: random.Random, path: Path) -> bytes:
    """Return the content of a file with one to three defects."""
    data = path.read_bytes()
    kind = KINDS.get(path.suffix, "")
    structured = {"json": _json, "yaml": _yaml, "parquet": _parquet, "sqlite": _sqlite}.get(kind)
    if structured and rng.random() < 0.6:
        return structured(rng, data)
    tools = BYTES if kind in ("parquet", "sqlite") else TEXTS
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data = rng.choice(tools)(rng, data)
    return data


def _place(rng: random.Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def _flip(rng: random.Random, data: bytes) -> bytes:
    content = bytearray(data)
    for _ in range(rng.choice([1, 1, 4, 40])):
        if content:
            content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content)


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: _place(rng, data)]


def _cut(rng: random.Random, data: bytes) -> bytes:
    begin = _place(rng, data)
    return data[:begin] + data[begin + rng.choice([1, 4, 100, 1000]) :]


def _twice(rng: random.Random, data: bytes) -> bytes:
    begin = _place(rng, data)
    return data[: begin + rng.choice([1, 10, 200])] + data[begin:]


def _insert(rng: random.Random, data: bytes) -> bytes:
    begin = _place(rng, data)
    return (
        data[:begin]
        + rng.choice([*STRANGE, b"\0" * 8, b"\xff", b"\r", b"\n", b"\t", b":", b"- ", b"&a *a"])
        + data[begin:]
    )


def _empty(rng: random.Random, data: bytes) -> bytes:
    return rng.choice(
        [b"", b"\n", b" \n\n", b"\0" * 100, b"{}", b"[]", b"null", b"<html><body>404</body></html>", b"\x7fELF\2\1\1"]
    )


def _encoded(rng: random.Random, data: bytes) -> bytes:
    text = data.decode(errors="replace")
    how = rng.choice(["utf-16", "utf-8-sig", "utf-32", "crlf", "cr", "gzip", "short gzip"])
    if how in ("utf-16", "utf-8-sig", "utf-32"):
        return text.encode(how, errors="replace")
    if how in ("crlf", "cr"):
        return data.replace(b"\n", b"\r\n" if how == "crlf" else b"\r")
    packed = gzip.compress(data, 1, mtime=0)
    return packed[: _place(rng, packed)] if how == "short gzip" else packed


def _bomb(rng: random.Random, data: bytes) -> bytes:
    return gzip.compress(data + b"0 " * 2**26, 1, mtime=0)


def _header(rng: random.Random, data: bytes) -> bytes:
    return data.partition(b"\n")[0] + b"\n"


def _line(rng: random.Random, data: bytes) -> bytes:
    """Drop, repeat, move, or cut a line."""
    lines = data.split(b"\n")
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.randrange(4)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines[at:at] = [lines[at]]
    elif how == 2:
        lines[at], lines[to] = lines[to], lines[at]
    else:
        lines[at] = lines[at][: _place(rng, lines[at])]
    return b"\n".join(lines)


def _flood(rng: random.Random, data: bytes) -> bytes:
    """Repeat a line very often."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at:at] = [lines[at]] * min(3000, 2**20 // (len(lines[at]) + 1))
    return b"\n".join(lines)


def _replaced(pattern: re.Pattern[bytes], values: list[bytes]) -> Mutate:
    def replace(rng: random.Random, data: bytes) -> bytes:
        found = [match.span() for match in pattern.finditer(data)]
        if not found:
            return data
        begin, end = rng.choice(found)
        return data[:begin] + rng.choice(values) + data[end:]

    return replace


def _swap(rng: random.Random, data: bytes) -> bytes:
    found = [match.span() for match in WORD.finditer(data)]
    if len(found) < 2:
        return data
    one, two = sorted(rng.sample(found, 2))
    return data[: one[0]] + data[slice(*two)] + data[one[1] : two[0]] + data[slice(*one)] + data[two[1] :]


def _delimiter(rng: random.Random, data: bytes) -> bytes:
    return data.replace(rng.choice([b",", b";", b"|", b" ", b":", b"="]), rng.choice([b";", b",", b" ", b"\t", b""]))


BYTES: list[Mutate] = [_flip, _flip, _truncate, _cut, _twice, _insert, _empty]
LINES: list[Mutate] = [
    *(*BYTES, _encoded, _header, _line, _line, _swap, _delimiter),
    *([_replaced(WORD, list(STRANGE))] * 2),
]
"""Defects of texts that leave a small file."""
TEXTS = [*LINES, *([_replaced(NUMBER, NUMBERS)] * 4), _flood, _bomb]


def _changed(rng: random.Random, value: Any) -> Any:
    """Return a value from JSON with one change at a random depth."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice([*value])
        how = rng.random()
        if how < 0.12:
            return {name: inner for name, inner in value.items() if name != key}
        if how < 0.17:
            return {**value, rng.choice(["", "x", 7, key + " " if isinstance(key, str) else "y"]): value[key]}
        return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        how = rng.random()
        if how < 0.1:
            return value[:at] + value[at + 1 :]
        if how < 0.2:
            return value[:at] + value[at:][:1] + value[at:]
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    return rng.choice([*VALUES, [value], {"x": value}, str(value)])


def _json(rng: random.Random, data: bytes) -> bytes:
    value = _changed(rng, json.loads(data))
    text = json.dumps(value, indent=1)
    if rng.random() < 0.1:  # a key twice
        key = rng.choice(re.findall(r'"\w+": [\w".]+,', text) or [""])
        text = text.replace(key, key + key, 1)
    return text.encode(errors="replace")


def _yaml(rng: random.Random, data: bytes) -> bytes:
    value = _changed(rng, yaml.safe_load(data))
    if rng.random() < 0.05:  # a bomb of aliases in place of a value
        nested: Any = ["x"] * 9
        for _ in range(9):
            nested = [nested] * 9
        value = {**value, rng.choice([*value]): nested} if isinstance(value, dict) and value else nested
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=rng.random() < 0.5).encode(errors="replace")


def _parquet(rng: random.Random, data: bytes) -> bytes:
    table = pd.read_parquet(io.BytesIO(data))
    name = rng.choice([*table.columns])
    how = rng.random()
    if how < 0.1:
        table = table.drop(columns=name)
    elif how < 0.2:
        table = pd.concat([table, table.sample(min(2, len(table)), random_state=rng.randrange(2**31))])
    elif how < 0.25:
        table = table.iloc[:0]
    elif how < 0.35:
        table[name] = rng.choice([None, True, -1, 2**31, 0.5, 1e308, float("nan"), float("inf"), "", "x", "0x10"])
    elif how < 0.4:
        table = table.rename(columns={name: rng.choice([*table.columns, "x", ""])})
    elif len(table):
        values = table[name].astype(object).tolist()
        values[rng.randrange(len(values))] = rng.choice(
            [-1, -1.0, 1e9, 1e308, float("inf"), float("nan"), 0, "", "x", None, 2**62]
        )
        table[name] = values
    file = io.BytesIO()
    try:
        table.to_parquet(file)
    except (ValueError, TypeError, OverflowError):  # mixed types, or two columns of one name
        return data[:-3]
    return file.getvalue()


def _sqlite(rng: random.Random, data: bytes) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        base = sqlite3.connect(file.name)
        tables = [row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = rng.choice(tables)
        columns = [row[1] for row in base.execute(f"PRAGMA table_info({table})")]
        column = rng.choice(columns)
        rows = [row[0] for row in base.execute(f"SELECT rowid FROM {table}")] or [0]
        row, how = rng.choice(rows), rng.random()
        if how < 0.2:
            base.execute(f"DELETE FROM {table} WHERE rowid = ?", [row])
        elif how < 0.25:
            base.execute(f"DROP TABLE {table}")
        else:
            (found,) = base.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", [row]).fetchone() or (None,)
            new: Any = rng.choice(["", "x", -1, 1e308, None, b"\xff\x00", 2**62, "NaN", "[]", "{}", '{"x": 1}'])
            if isinstance(found, str) and found[:1] in "{[" and rng.random() < 0.8:
                new = _json(rng, found.encode()).decode()
            try:
                base.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?", [new, row])
            except sqlite3.Error:
                base.execute(f"DELETE FROM {table} WHERE rowid >= ?", [row])
        base.commit()
        base.close()
        return Path(file.name).read_bytes()
