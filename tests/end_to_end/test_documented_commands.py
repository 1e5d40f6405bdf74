"""The commands in README and docs/: all are accepted, and all blocks of commands run.

The blocks of a page run in order, in one empty folder. Files that a page assumes (logs, workloads, experiments) are
replaced by small ones, and replays run at a high speed. A block that a test cannot run has a comment above it,
`<!-- not run: REASON -->`; the options of its commands are still checked.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from tests.documented import ROOT, blocks, check, inline, run_all
from tests.recorders import gallery

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
NOT_RUN = {
    "README.md": 1,
    "docs/accuracy.md": 3,
    "docs/board.md": 1,
    "docs/explanation/amte-malleable.md": 1,
    "docs/explanation/calibration.md": 1,
    "docs/explanation/ensembles.md": 1,
    "docs/explanation/health.md": 2,
    "docs/explanation/noise.md": 1,
    "docs/explanation/pace.md": 1,
    "docs/explanation/peers.md": 3,
    "docs/explanation/verdict.md": 1,
    "docs/how-to/ansible.md": 3,
    "docs/how-to/calibrate.md": 6,
    "docs/how-to/elastic-programs.md": 1,
    "docs/how-to/elastisim.md": 2,
    "docs/how-to/forecast.md": 1,
    "docs/how-to/grid.md": 2,
    "docs/how-to/run-your-programs.md": 1,
    "docs/how-to/repeat.md": 1,
    "docs/how-to/replay.md": 1,
    "docs/how-to/survive.md": 1,
    "docs/how-to/write-a-policy.md": 1,
    "docs/how-to/validate-your-simulator.md": 1,
    "docs/reference/import.md": 1,
    "docs/reference/ledger.md": 1,
    "docs/reference/policies/slurm.md": 2,
    "docs/reference/tolerances.md": 1,
    "docs/reference/whatif.md": 1,
    "docs/testbeds/docker.md": 2,
    "docs/testbeds/slurm.md": 1,
    "docs/testbeds/slurm-policies.md": 3,
    "docs/testbeds/ssh.md": 1,
    "docs/testbeds/slurm-scheduler.md": 1,
}
"""How many blocks of each page are not run: another one needs a change here, and a reason in the page."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_documented_commands_are_accepted(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = [command for block in blocks(text) for command in block.commands]
    for command in [*commands, *inline(text)]:
        try:
            check(command)
        except click.ClickException as error:
            pytest.fail(f"{shlex.join(command)}: {error.format_message()}")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if list(blocks(page.read_text(encoding="utf-8")))], ids=name)
def test_documented_commands_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("svg_only" if page == gallery.PAGE else "without_pictures")
    monkeypatch.chdir(tmp_path)
    found = list(blocks(page.read_text(encoding="utf-8")))
    assert len([block for block in found if block.reason]) == NOT_RUN.get(name(page), 0)
    run_all(found, tmp_path)
    if page == gallery.PAGE:
        assert all(gallery.made(picture, tmp_path).stat().st_size > 1000 for picture in gallery.shown())


def test_no_page_is_excused_that_has_no_command() -> None:
    """A page without commands is not in the test above, which would count its blocks that are not run."""
    assert [page for page in NOT_RUN if not list(blocks((ROOT / page).read_text(encoding="utf-8")))] == []


def test_an_invalid_command_is_detected() -> None:
    text = "Text.\n\n    tracebed convert a.swf --no-such-option    # no\n\n"
    text += "<!-- not run: why -->\n\n    tracebed demo && x\n"
    first, second = blocks(text)
    assert (first.reason, second.reason, second.commands) == (None, "why", [["tracebed", "demo"]])
    with pytest.raises(click.NoSuchOption):
        check(first.commands[0])
    with pytest.raises(click.UsageError):
        check(["tracebed", "no-such-command"])
    with pytest.raises(click.BadParameter):
        check(["tracebed", "simulate", "w.parquet", "--engine", "steam"])
    assert list(inline("Use `tracebed clean --list` or `tracebed clean ...`.")) == [["tracebed", "clean", "--list"]]
