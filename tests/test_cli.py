"""The command line as a whole: exit statuses, what every command shares."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tracebed.errors import ExitCode
from tracebed.orchestrator import cli

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Return a function that runs `tracebed` in an empty folder: (exit status, standard output, error)."""
    monkeypatch.chdir(tmp_path)
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tracebed", *arguments])
        with pytest.raises(SystemExit) as end, pytest.MonkeyPatch.context():
            cli.main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tracebed describe` fail as tracebed did not foresee."""

    def fail(self: object, context: click.Context) -> None:
        raise LookupError("no \x1b[31mshoes")

    command = cli.tracebed.get_command(click.Context(cli.tracebed), "describe")
    monkeypatch.setattr(command, "invoke", fail.__get__(command))


@pytest.mark.usefixtures("broken")
def test_a_crash_is_not_a_verdict(call: Call, tmp_path: Path) -> None:
    """Python would exit with 1, which says that a prediction is inaccurate."""
    status, out, err = call("describe", "w.parquet")
    assert status == ExitCode.INTERNAL == 70
    assert out == ""
    (line,) = err.splitlines()
    assert "internal error: LookupError: no \\x1b[31mshoes (tracebed 0." in line
    (written,) = (tmp_path / "state" / "tracebed").iterdir()
    assert str(written) in line
    assert "Traceback" in written.read_text()
    assert "w.parquet" in written.read_text()


@pytest.mark.usefixtures("broken")
def test_the_traceback_of_a_crash_is_shown_on_demand(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACEBED_TRACEBACK", "1")
    status, _, err = call("describe", "w.parquet")
    assert status == ExitCode.INTERNAL
    assert err.startswith("Traceback")
    assert "LookupError" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("broken")
def test_a_crash_is_reported_where_no_file_can_be_written(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "state"))
    status, _, err = call("describe", "w.parquet")
    assert status == ExitCode.INTERNAL
    assert "TRACEBED_TRACEBACK=1" in err
