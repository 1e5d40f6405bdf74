"""The checksums of a journal: what was damaged, edited or lost is refused or marked, and never another run."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from tests.journals import change, forge
from tests.oracles.redecided import emulated, workload
from tests.runs import replaying
from tracebed.cli import tracebed
from tracebed.ground import system
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.folder import SECRET, WorkingFolder
from tracebed.orchestrator.replay.journal import Entry, Journal, head_path
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, TABLES, Run
from tracebed.validation.budget import error_budget
from tracebed.validation.verdict.rejudging import reassessed_health

pytestmark = pytest.mark.usefixtures("no_process_is_left")

WAL = "-wal"
CHANGES = 60
"""Number of bytes that are changed in each file of a journal."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of a replay of three jobs."""
    folder = tmp_path_factory.mktemp("made") / "run"
    replay(workload(3), emulated(4), "fcfs", folder, **replaying(2000.0))
    return folder


@pytest.fixture(scope="module")
def killed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working folder of that replay, as if it had been killed at its end: rows are in the write-ahead log.

    The replay with the facts of its journal has no `end`, so it can be resumed.
    """
    facts, entries = journal.read(made / JOURNAL)
    home = tmp_path_factory.mktemp("killed")
    folder = WorkingFolder(home / "run")
    folder.close()
    writing = home / "writing"
    writing.mkdir()
    facts.pop("end")
    half = len(entries) // 2
    with contextlib.closing(Journal(writing / JOURNAL, facts)) as written:
        written.write(entries[:half])
        written._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for entry in entries[half:]:
            written.write([entry])
        for file in writing.iterdir():  # the writer has not closed its files
            if not file.name.endswith("-shm"):
                shutil.copy(file, folder.path / file.name)
    return folder.path


def copied(killed: Path, home: Path) -> Path:
    """Return a copy of a working folder."""
    return Path(shutil.copytree(killed, home / killed.name))


def same(run: Run, other: Run) -> bool:
    return vars(run.info) == vars(other.info) and all(
        getattr(run, table).equals(getattr(other, table)) for table in TABLES
    )


@pytest.mark.parametrize("file", ["", WAL, journal.HEAD_SUFFIX])
def test_no_changed_byte_makes_another_run(killed: Path, tmp_path: Path, file: str) -> None:
    draw, truth, refused = random.Random(f"bytes {file}"), recovered(copied(killed, tmp_path) / JOURNAL), 0
    content = (killed / (JOURNAL + file)).read_bytes()
    for number in range(CHANGES):
        folder = tmp_path / str(number)
        shutil.copytree(killed, folder)
        at = draw.randrange(len(content))
        other = bytes([content[at] ^ draw.randrange(1, 256)])
        (folder / (JOURNAL + file)).write_bytes(content[:at] + other + content[at + 1 :])
        try:
            assert same(recovered(folder / JOURNAL), truth), f"byte {at:,} of {len(content):,}"
        except InputError as error:
            refused += 1
            assert JOURNAL in str(error)
        shutil.rmtree(folder)
    assert refused > CHANGES / 30  # most bytes of a database are in no row


READERS: dict[str, Callable[[Path], object]] = {
    "recover": lambda folder: CliRunner().invoke(
        tracebed, ["replay", "--recover", str(folder), "-o", str(folder.parent / "again")], catch_exceptions=False
    ),
    "resume": lambda folder: replay(
        workload(3), emulated(4), "fcfs", folder.parent / "run", **replaying(2000.0), resume=True
    ),
    "watch": lambda folder: CliRunner().invoke(
        tracebed, ["watch", str(folder), "--interval", "0"], catch_exceptions=False
    ),
}
EDITS = {
    "a time": "UPDATE entries SET time = time + 1 WHERE number = (SELECT MIN(number) FROM entries WHERE kind = 'end')",
    "all times": "UPDATE entries SET time = time + 1000",
    "a state": "UPDATE entries SET data = replace(data, 'completed', 'failed') WHERE kind = 'end'",
    "an entry that is removed": "DELETE FROM entries WHERE number = (SELECT MIN(number) FROM entries "
    "WHERE kind = 'sample')",
    "the last entries": "DELETE FROM entries WHERE number > (SELECT MAX(number) FROM entries) - 3",
    "a fact": "UPDATE facts SET value = replace(value, '2000', '1000') WHERE name = 'info'",
    "a fact that is removed": "DELETE FROM facts WHERE name = 'hosts'",
    "a number": "UPDATE entries SET number = number + 1000 WHERE number = (SELECT MAX(number) FROM entries)",
    "a checksum": "UPDATE entries SET chain = x'00' WHERE number = (SELECT MAX(number) FROM entries)",
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("edit", EDITS)
def test_no_edited_journal_is_accepted(killed: Path, tmp_path: Path, edit: str, reader: str) -> None:
    folder = copied(killed, tmp_path)
    assert change(folder / JOURNAL, EDITS[edit])
    with pytest.raises(InputError, match=r"journal is damaged: (row|the last) .* (was written|are missing)"):
        READERS[reader](folder)
    assert folder.exists() and not (tmp_path / "again").exists() and not (tmp_path / "run").exists()


@pytest.mark.parametrize("reader", READERS)
def test_no_edited_journal_with_new_checksums_is_accepted_beside_its_head(
    killed: Path, tmp_path: Path, reader: str
) -> None:
    folder = copied(killed, tmp_path)
    head = head_path(folder / JOURNAL).read_bytes()
    assert forge(folder / JOURNAL, EDITS["a time"])
    head_path(folder / JOURNAL).write_bytes(head)
    with pytest.raises(InputError, match=r"journal is damaged: row \d+ is not the last row that was written"):
        READERS[reader](folder)


@pytest.mark.parametrize("edit", ["a time", "the last entries"])
def test_no_journal_without_its_head_is_unmarked(killed: Path, tmp_path: Path, edit: str) -> None:
    """Nothing proves its last rows, and whoever deletes the head can also compute the checksums again."""
    folder = copied(killed, tmp_path)
    assert forge(folder / JOURNAL, EDITS[edit])
    run = recovered(folder / JOURNAL)
    assert any("the head of the journal was missing" in warning for warning in run.info.warnings)


def test_no_resumed_replay_hides_that_the_head_was_missing(killed: Path, tmp_path: Path) -> None:
    folder = copied(killed, tmp_path)
    head_path(folder / JOURNAL).unlink()
    run = READERS["resume"](folder)
    assert isinstance(run, Run)
    assert any("the head of the journal was missing" in warning for warning in run.info.warnings)
    assert run.info.warnings == recovered(tmp_path / "run" / JOURNAL).info.warnings


OTHER_DECISIONS = {
    "a start that is removed": "DELETE FROM entries WHERE number = (SELECT MIN(number) FROM entries "
    "WHERE kind = 'start')",
    "other nodes": "UPDATE entries SET data = replace(data, '[\"n', '[\"m') WHERE number = (SELECT MIN(number) "
    "FROM entries WHERE kind = 'start')",
    "a job that is submitted later": "UPDATE entries SET round = (SELECT MAX(round) FROM entries) "
    "WHERE number = (SELECT MIN(number) FROM entries WHERE kind = 'submit')",
}


@pytest.mark.parametrize("edit", OTHER_DECISIONS)
def test_no_journal_with_other_decisions_is_resumed(killed: Path, tmp_path: Path, edit: str) -> None:
    """Its checksums were computed again, and its head was deleted: only its decisions tell the edit."""
    folder = copied(killed, tmp_path)
    assert forge(folder / JOURNAL, OTHER_DECISIONS[edit])
    with pytest.raises(InputError, match=r"the decisions of round \d+ are not those of the journal"):
        READERS["resume"](folder)
    assert folder.exists() and not (tmp_path / "run").exists()


def test_no_whole_journal_is_called_unproved(made: Path, killed: Path, tmp_path: Path) -> None:
    for path in (made / JOURNAL, copied(killed, tmp_path) / JOURNAL):
        assert not [warning for warning in recovered(path).info.warnings if "head" in warning]


def test_no_hint_of_a_damaged_journal_is_refused_in_turn(killed: Path, tmp_path: Path) -> None:
    """`--resume` said that `--recover` makes a run of the replay, which refused the journal, too."""
    folder = copied(killed, tmp_path)
    assert change(folder / JOURNAL, EDITS["a time"])
    with pytest.raises(InputError, match="journal is damaged") as raised:
        READERS["resume"](folder)
    assert "--recover" not in str(raised.value)
    assert folder.exists()


@pytest.mark.parametrize("edit", [edit for edit in EDITS if edit != "the last entries"])
def test_no_error_budget_is_made_of_an_edited_journal(made: Path, tmp_path: Path, edit: str) -> None:
    run = Path(shutil.copytree(made, tmp_path / "run"))
    assert change(run / JOURNAL, EDITS[edit])
    with pytest.raises(InputError, match="journal is damaged: row"):
        error_budget(workload(3), run)


@pytest.mark.parametrize("lost", [1, 2, 10])
def test_no_saved_journal_without_its_last_rows_is_accepted(made: Path, tmp_path: Path, lost: int) -> None:
    """The journal of a saved run has no head. Its last row says that the journal is complete."""
    run = Path(shutil.copytree(made, tmp_path / "run"))
    cut = [
        f"DELETE FROM {table} WHERE number > (SELECT MAX(number) FROM facts) - {lost}" for table in ("entries", "facts")
    ]
    assert change(run / JOURNAL, *cut) == lost
    with pytest.raises(InputError, match=r"journal is damaged: the rows after row \d+ are missing"):
        error_budget(workload(3), run)
    assert "its journal cannot be used (the journal is damaged" in " ".join(reassessed_health(Run.load(run)).notes)


@pytest.mark.parametrize("lost", [WAL, ""])
def test_no_lost_rows_are_taken_for_the_end(killed: Path, tmp_path: Path, lost: str) -> None:
    folder = copied(killed, tmp_path)
    (folder / (JOURNAL + lost)).write_bytes(b"")
    with pytest.raises(InputError, match=r"rows are missing|cannot be read"):
        replay(workload(3), emulated(4), "fcfs", tmp_path / "run", **replaying(2000.0), resume=True)
    with pytest.raises(InputError, match=r"rows are missing|cannot be read"):
        recovered(folder / JOURNAL)
    assert not (tmp_path / "run").exists()


def test_no_rows_that_a_power_failure_lost_are_unmarked(killed: Path, tmp_path: Path) -> None:
    """The machine has restarted since: rows that were not on the disk are lost, and the rows before are a replay."""
    folder = copied(killed, tmp_path)
    (folder / (JOURNAL + WAL)).unlink()
    head = head_path(folder / JOURNAL)
    head.write_text(head.read_text().replace(system.current().boot_id() or "", "0" * 36))
    run = recovered(folder / JOURNAL)
    assert run.info.state == "interrupted"
    assert any("rows that were written before a power failure" in warning for warning in run.info.warnings)


def test_a_journal_whose_writer_was_killed_before_its_head_is_complete(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path / JOURNAL, {"a": 1})) as written:
        head = head_path(tmp_path / JOURNAL).read_bytes()
        written.write([Entry(0, 1.0, "call", None, None, {})])
    head_path(tmp_path / JOURNAL).write_bytes(head)
    facts, entries = journal.read(tmp_path / JOURNAL)
    assert facts == {"a": 1} and len(entries) == 1


def test_a_journal_is_continued_and_its_facts_are_replaced(tmp_path: Path) -> None:
    for value in (1, 2):
        with contextlib.closing(Journal(tmp_path / JOURNAL, {"a": value})) as written:
            written.write([Entry(value, float(value), "call", None, None, {})])
    facts, entries = journal.read(tmp_path / JOURNAL)
    assert facts == {"a": 2} and [entry.round for entry in entries] == [1, 2]
    assert journal.read(journal.copy(tmp_path / JOURNAL, tmp_path / "copy")) == (facts, entries)


@pytest.mark.parametrize("secret", [None, "", "no hex", "ab", "ab" * 100, b"\xff"])
def test_no_secret_is_an_internal_error(killed: Path, tmp_path: Path, secret: str | bytes | None) -> None:
    folder = copied(killed, tmp_path)
    path = folder / SECRET
    path.unlink()
    if secret is not None:
        path.write_bytes(secret if isinstance(secret, bytes) else secret.encode())
    with pytest.raises(InputError, match="the secret of the replay cannot be read") as raised:
        replay(workload(3), emulated(4), "fcfs", tmp_path / "run", **replaying(2000.0), resume=True)
    assert "tracebed replay --recover" in str(raised.value)
    pd.testing.assert_frame_equal(recovered(folder / JOURNAL).jobs, recovered(killed / JOURNAL).jobs)


@pytest.mark.parametrize("writes", ["nothing", "the header", "a table"])
def test_no_journal_that_is_being_created_is_damaged(tmp_path: Path, writes: str) -> None:
    path = tmp_path / JOURNAL
    path.touch()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        if writes != "nothing":
            database.execute("PRAGMA journal_mode=WAL")
        if writes == "a table":
            database.execute(journal.SCHEMA.split(";")[0])
        with contextlib.closing(journal.Reader(path)) as reader:
            assert (reader.facts(), reader.entries()) == ({}, [])
            assert not journal.has_facts(path)
            with pytest.raises(InputError, match="the replay has not begun"):
                recovered(path)
            with contextlib.closing(Journal(path, {"schema": "new"})) as begun:
                begun.write([Entry(0, 0.0, "submit", "j1", None, {})])
                assert reader.facts() == {"schema": "new"}
                assert [entry.kind for entry in reader.entries()] == ["submit"]
