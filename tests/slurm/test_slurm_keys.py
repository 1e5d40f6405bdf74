"""Every key of slurm.conf(5) is modeled, has no effect on decisions, or is warned about, as `slurm_keys.txt` says."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tracebed.slurm.conf import SlurmConf, of_lines
from tracebed.slurm.conf_lines import parsed

TABLE = Path(__file__).with_name("slurm_keys.txt")
PLAIN = {
    **{"ClusterName": "c", "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_Core"},
    **{"PriorityType": "priority/multifactor", "PriorityWeightAge": "5", "PriorityWeightFairshare": "5"},
    **{"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"},
}
OF_CPUS = ("Boards", "CoresPerSocket", "Procs", "Sockets", "SocketsPerBoard")
"""Keys whose value counts if the line has no CPUs."""
KINDS = ("cluster", "node", "partition")


class Row(NamedTuple):
    """A key of `slurm_keys.txt`: its kind or its list, its releases, and what becomes of `value`."""

    kind: str
    releases: str
    state: str
    why: str
    key: str
    value: str


def rows() -> list[Row]:
    found = list[Row]()
    head: list[str] = []
    for line in TABLE.read_text().splitlines():
        if line.startswith(" "):
            for text in line.split():
                key, _, value = text.partition("=")
                found.append(Row(*head, key, value))  # type: ignore[arg-type]
        elif not line.startswith("#"):
            head = [part.strip() for part in line.split("|")]
    return found


def conf_of(*changes: Row) -> SlurmConf:
    """Return what is read from a file with settings of these rows."""
    settings = dict(PLAIN)
    node, partition = ("NodeName=n[1-4]", {"CPUs": "4", "RealMemory": "1000"}), ("PartitionName=a", {"Nodes": "n[1-3]"})
    for kind, _, _, _, key, value in changes:
        if kind == "cluster":
            settings[key] = value or "9"
        elif kind == "node":
            node[1].pop("CPUs" if key in OF_CPUS else "", None)
            node[1][key] = value or "9"
        elif kind == "partition":
            partition[1][key] = value or "9"
        else:
            settings[kind] = f"{key}{'=' if value else ''}{value},{settings.get(kind, '')}".strip(",")
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [f"{name} {' '.join(map('='.join, own.items()))}" for name, own in (node, partition)]  # type: ignore[arg-type]
    lines += ["PartitionName=b Nodes=n[1-4] PriorityTier=2"]
    lines += ["NodeName=n5 CPUs=4"] if "State" in node[1] else []  # without a node, there is no cluster
    return of_lines(
        [parsed(line, f"slurm.conf:{number}") for number, line in enumerate(lines, 1)], Path("/nowhere/conf")
    )


ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.key}")
def test_a_key_is_modeled_or_warned_about_unless_it_has_no_effect(row: Row) -> None:
    before, after = conf_of(), conf_of(row)
    new = "\n".join(text for text in after.differences if text not in before.differences)
    names = [row.key] if row.kind in KINDS else [row.kind, row.key]
    named = all(name.lower() in new.lower() for name in names)
    changed = (after.parameters, after.cluster) != (before.parameters, before.cluster)
    assert (named, changed or row.state == "warned") == {
        "modeled": (False, True),
        "in part": (True, True),
        "warned": (True, True),
        "no effect": (False, False),
    }[row.state]


def test_the_table_has_no_key_twice_and_a_reason_for_each() -> None:
    keys = [(row.kind, row.key.lower()) for row in ROWS]
    assert len(keys) == len(set(keys)) and all(row.why and row.releases for row in ROWS)
    assert {release for row in ROWS for release in row.releases.split()} == {"22.05", "24.11", "26.05"}


def test_a_key_that_no_release_has_is_named() -> None:
    for kind in KINDS:
        row = Row(kind, "", "warned", "", "Colour", "red")
        assert any("Colour=red" in text for text in conf_of(row).differences)
    for kind in sorted({row.kind for row in ROWS} - {*KINDS, "PrologFlags", "LaunchParameters", "SlurmdParameters"}):
        if kind != "ReconfigFlags":
            assert any("colour" in text.lower() for text in conf_of(Row(kind, "", "", "", "colour", "")).differences), (
                kind
            )


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("DownNodes=n1 State=DOWN Reason=fan", "DownNodes=n1"),
        ("FrontendName=f FrontendAddr=10.0.0.1 Port=7 State=UP AllowGroups=g", "FrontendName=f"),
        ("NodeSet=s Nodes=n1", ""),
        ("PowerAction=up Location=slurmctld Program=/bin/up", ""),
        ("NodeSet=s Nodes=n1 Colour=red", "Colour=red"),
        ("DownNodes=n1 Colour=red", "Colour=red"),
        ("PowerAction=up Colour=red", "Colour=red"),
        ("FrontendName=f Colour=red", "Colour=red"),
    ],
)
def test_a_line_of_several_settings_is_used_or_named(line: str, named: str) -> None:
    lines = [parsed(text, "") for text in ("NodeName=n[1-4] CPUs=4", "PartitionName=a Nodes=n1", line)]
    before, after = (of_lines(each, Path("/nowhere/conf")).differences for each in (lines[:2], lines))
    assert (set(after) > set(before)) == bool(named) and named in "".join(set(after) - set(before))
