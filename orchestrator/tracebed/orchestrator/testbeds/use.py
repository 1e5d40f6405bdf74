"""The use of groups of nodes: which groups a replay has made."""

from __future__ import annotations

from pathlib import Path

from tracebed.orchestrator.testbeds.nodes import Group

MADE = "made"
"""File in the folder of a replay with the names of the groups that the replay has brought up."""


def note_made(folder: Path, group: Group) -> None:
    """Record in the folder of a replay that the replay brings up a group.

    Providers call this function before they make anything. A replay that is killed afterwards and resumed then takes
    the nodes down.
    """
    if group.name not in groups_made(folder):
        with (folder / MADE).open("a", encoding="utf-8") as file:
            file.write(f"{group.name}\n")


def groups_made(folder: Path) -> set[str]:
    """Return the names of the groups that the replay has brought up, also before it was resumed."""
    file = folder / MADE
    return set(file.read_text(encoding="utf-8").splitlines()) if file.exists() else set()
