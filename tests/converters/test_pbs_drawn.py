"""The reader of PBS accounting in C and in Python gives what the reference gives: logs, warnings and errors."""

from __future__ import annotations

import gzip
import random
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest

from tests.converters.test_pbs import BAD, LOG, TORQUE, T, ended, line
from tests.oracles import reference_pbs
from tests.performance import pbs_log
from tracebed.converters.formats import pbs
from tracebed.converters.formats.tools import pbs_text
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.log import Log
from tracebed.ground.errors import InputError

REQUESTS = (
    *("2:ncpus=16:ngpus=2:bigmem=true:ib=False+1:ncpus=4", "4:ppn=32:fast+n7:ppn=8", "n3", "", "1:ncpus=x", "2#shared"),
    *("1:ppn=4:gpus=1:fast", f"{10**20}:ncpus=1", "3:ncpus=999999999", "1:ncpus=", "٣:ncpus=2", "host=a+b"),
)
HOSTS = (
    *("n1/0*16+n2/0*16", "n1/0-3+n2/0,2-4", "n1/0+n1/1+n2/0", "n1/0*0+n2/0*4", "b9", "b9+b8", "", "n1/all", "n1/5-2"),
    *("n1/0*999999999", "n1/1-2-3", "/3", "n1/0*0"),
)
NUMBERS = (
    *(str(T + shift) for shift in range(0, 400, 40)),
    "0",
    "",
    "-5",
    "12.5",
    "now",
    "1e5",
    "٣",
    "9" * 15,
    "9" * 16,
)
VALUES: dict[str, Sequence[str]] = {
    **dict.fromkeys(("ctime", "qtime", "etime", "start", "end"), NUMBERS),
    "user": ("ann", '"bob"', "", "é", '"all users"', "x y=z", "x  y", "a\tb", "a\x85"),
    "group": ("g", "", '"g 1"'),
    "account": ('"A1"', "", "_none"),
    "queue": ("workq", "batch", ""),
    "Exit_status": ("0", "1", "271", "-11", "-29", "137", "", "ok", "0 "),
    "exec_host": HOSTS,
    "exec_vnode": ("(n1:ncpus=16)+(n2:ncpus=16)", "(b9[0]:ncpus=8+b9[1]:ncpus=8)", "", "(n1:mem=3kb)"),
    "depend": ("afterok:1.srv@srv:2.srv@srv,on:1", '"afterany:3[4].srv"', "beforeok:6.srv", ""),
    "Resource_List.nodes": REQUESTS,
    "Resource_List.select": REQUESTS,
    "Resource_List.nodect": ("2", "0", "", "x", "1.5", "-1", "99999999999"),
    "Resource_List.ncpus": ("32", "0", "", "x", "-3", "0.5"),
    "Resource_List.ngpus": ("2", "0", "", "x", "-1"),
    "Resource_List.walltime": ("01:00:00", "1:00:00:00", "60", "", "1h", "00:00:00"),
    "Resource_List.mem": ("64gb", "18996kb", "8w", "", "much", "0b"),
    "Resource_List.pmem": ("2gb", "", "4MW", "much"),
    **{"jobname": ("name", "my job", "a=b", "1x=3", "c é=1"), "resources_used.walltime": ("00:01:00", "")},
    **{"project": ("_pbs_project_default",), "é": ("1",), "1x": ("2",), "": ("3",)},
}
"""Values of each key, of which most are sound in most places."""
USUAL = {
    key: values[:1] for key, values in VALUES.items() if key not in ("é", "1x", "", "Resource_List.nodes", "depend")
}
JOBS = ("1.srv", "2.srv", "3[4].srv", "3[].srv", "4", "5.", "1.other", "a b=c.srv", "6.srv.de")
KINDS = "EEEEEESSQQQDARLx_"
MISTAKES = (
    *("", " ", "\t", "\x85", "gone", "03/01/20", "02/30/2021 12:00:00;E;1.srv;", "03/01/2021 25:00:00;E;1.srv;a=1"),
    *("03/01/2021 12:00:00;E;;a=1", "03/01/2021 12:00:00;E;1.srv;gone", "03/01/2021 12:00:00;L;1.srv;gone\t"),
    *("03/01/2021 12:00:00;EE;1.srv;a=1", "03/01/2021 12:00:00;E;1.srv;", "٠3/01/2021 12:00:00;E;1.srv;a=1"),
    *("03/01/2021 23:59:60;D;2.srv;requestor=x", "03/01/2021 12:00:00;S;4;\t start=1614600010 x\t ", "é" * 30),
    *("03/01/2021 12:00:00;E;1.srv", "03/01/2021 12:00:00;E;1.srv;foo 1x=3 user=ann 2y=1", "é;" * 30),
)


def drawn_line(draw: random.Random, wrong: float) -> str:
    """Return a record, which is sound with probability 1 - `wrong`."""
    if draw.random() < wrong / 2:
        return draw.choice(MISTAKES)
    usual = draw.choice((ended("1.srv", 0, 10, 70), ended("1.srv", 0, 10, 70, **TORQUE)))
    values = [item.partition("=")[::2] for item in re.split(r" (?=[A-Za-z_.]+=)", usual.partition("srv;")[2])]
    values = draw.choice((values, [], [(key, draw.choice(of)) for key, of in USUAL.items() if draw.random() < 0.7]))
    table = VALUES if draw.random() < wrong else USUAL
    values += [(key, draw.choice(table[key])) for key in draw.sample(list(table), draw.choice((0, 0, 1, 3)))]
    if draw.random() < 0.2:
        draw.shuffle(values)
    gap = draw.choice((" ", " ", " ", "  "))
    start = line(draw.choice(KINDS), draw.choice(JOBS), draw.choice((0, 60, 3600, 9_000_000)))
    return (
        start + gap.join(f"{key}={value}" for key, value in values) + draw.choice(("",) * 9 + (" ", "\r", "\t", "\r\r"))
    )


def drawn_files(seed: int) -> list[bytes]:
    """Return the contents of one to three files."""
    draw = random.Random(seed)
    wrong = draw.choice((0.0, 0.02, 0.1, 0.4))
    files = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        text = "\n".join(drawn_line(draw, wrong) for _ in range(draw.randint(1, 12)))
        data = text.encode() + draw.choice((b"", b"\n", b"\n", b"\n", b"\n\n", b"\n  "))
        data = data[: draw.randint(60, len(data))] if draw.random() < 0.1 and len(data) > 60 else data
        if draw.random() < wrong:  # bytes that are not UTF-8
            at = draw.randrange(len(data))
            data = data[:at] + draw.choice((b"\xff", b"\xc3", b"\r", b"\0", b";", b"=", b" ")) + data[at:]
        files.append(draw.choice((b"", b"", b"\xef\xbb\xbf")) + data)
    return files


def outcome(read: Callable[..., Log], files: Sequence[Input], options: dict[str, Any]) -> Any:
    """Return the table, the provenance and the warnings of a log, or the error."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            log = read(files, **options)
        except InputError as error:
            return error.what, error.where, error.hint
    table = log.table.copy()
    for name in table:
        if not pd.api.types.is_numeric_dtype(table[name]):
            table[name] = table[name].astype(str)
    return list(table), table.to_dict("list"), log.provenance, [str(warning.message) for warning in found]


def same(files: Sequence[Input], **options: Any) -> Any:
    """Return the outcome after the check that both readers give it."""
    expected, result = (repr(outcome(reader.read_log, files, options)) for reader in (reference_pbs, pbs))
    assert result == expected, [file.data for file in files]
    return result


def drawn_outcome(seed: int) -> Any:
    """Return the outcome of a drawn log after the check that both readers give it."""
    files = [Input.of(data, f"day{number}") for number, data in enumerate(drawn_files(seed))]
    zone = "Nowhere" if seed % 25 == 0 else (None, "America/Denver")[seed % 3 % 2]
    return same(files, keep_extra=seed % 2 == 0, time_zone=zone)


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pbs_text, "LIBRARY", tmp_path / "absent.so")
    with pytest.warns(UserWarning, match="install a C compiler"):
        pbs_text._library(pbs_text.LIBRARY)


@pytest.mark.parametrize("block", [2**21, 300])
@pytest.mark.parametrize("seeds", [range(first, first + 300) for first in range(0, 1200, 300)], ids=lambda at: at[0])
def test_drawn_logs_are_read_like_the_reference(seeds: range, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pbs_text, "BLOCK", block)
    assert sum("Provenance" in drawn_outcome(seed) for seed in seeds) > 75, "most logs are sound"


@pytest.mark.usefixtures("without_library")
def test_drawn_logs_are_read_without_a_compiler() -> None:
    assert sum("Provenance" in drawn_outcome(seed) for seed in range(10_500, 10_700)) > 50


def test_the_examples_are_read_like_the_reference() -> None:
    for text in ["\n".join(LOG), *(text for text, _ in BAD.values())]:
        same([Input.of(text.encode(), "20210301")], keep_extra=True)


@pytest.mark.skipif(not pbs_text.LIBRARY.exists(), reason="there was no C compiler")
def test_a_large_log_of_every_kind_in_days_is_cut_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pbs_text, "BLOCK", 2**16)
    monkeypatch.setattr(pbs_text, "_interpreted", in_python := Mock(wraps=pbs_text._interpreted))
    pbs_log.write(tmp_path / "whole", 3_000, every_kind=True)
    lines = (tmp_path / "whole").read_text().splitlines(keepends=True)
    (tmp_path / "1").write_bytes(gzip.compress("".join(lines[:4_000]).encode()))
    (tmp_path / "2").write_text("".join(lines[4_000:]))
    for extra, most in ((False, 0), (True, 4)):  # Python cuts a block with new keys
        assert "Provenance" in same([Input.at(tmp_path / day) for day in "12"], keep_extra=extra, keep_names=True)
        assert in_python.call_count <= most
