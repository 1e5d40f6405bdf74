"""A change of a slurm.conf: its parts, in the order in which they are applied, and the changed cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracebed.ground.errors import InputError
from tracebed.operators.whatif.refused import Remedy
from tracebed.orchestrator.setup import Setup
from tracebed.slurm.changes import Addition, class_of, modeled, of_database, with_database, with_nodes, with_settings
from tracebed.slurm.conf import SlurmConf, read
from tracebed.slurm.conf_lines import Line, lines_of
from tracebed.slurm.database import Database


@dataclass(frozen=True)
class Change:
    """What is changed in a slurm.conf. All empty: nothing."""

    settings: tuple[str, ...] = ()
    """Settings, in the grammar of `orchestrator.slurm.changes`."""
    nodes: tuple[tuple[str, Addition], ...] = ()
    """Partition and additional nodes."""
    replacement: Path | None = None
    """Another slurm.conf in place of the first; the settings and nodes change that one."""
    remedy: Remedy = Remedy.LEAVE_OUT
    """What is done with jobs beyond a new limit."""

    def __bool__(self) -> bool:
        """Return whether anything is changed."""
        return bool(self.settings or self.nodes or self.replacement)

    @property
    def others(self) -> Iterator[tuple[str, Change]]:
        """Each setting and partition, with the change without it."""
        for number, setting in enumerate(self.settings):
            yield setting, replace(self, settings=self.settings[:number] + self.settings[number + 1 :])
        for number, (name, addition) in enumerate(self.nodes):
            yield _more(name, addition), replace(self, nodes=self.nodes[:number] + self.nodes[number + 1 :])

    def words(self, lines: Sequence[Line]) -> tuple[str, ...]:
        """Return the changes in words; `lines` are those of the slurm.conf."""
        replaced = () if self.replacement is None else (f"{self.replacement.name} in place of the slurm.conf",)
        settled = replace(self, nodes=()).applied(lines)
        nodes = (f"{_more(name, each)}, like {','.join(class_of(settled, name, each))}" for name, each in self.nodes)
        return (*replaced, *self.settings, *nodes)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that the settings and nodes name."""
        keys = [setting.partition("=")[0].strip() for setting in self.settings]
        named = [key.partition(".")[2].rpartition(".")[0] for key in keys if key.lower().startswith("partition.")]
        return (*named, *(name for name, _ in self.nodes))

    def applied(self, lines: Sequence[Line]) -> list[Line]:
        """Return the changed lines."""
        begun = lines if self.replacement is None else lines_of(self.replacement)
        own = [setting for setting in self.settings if not of_database(setting)]
        return with_nodes(with_settings(begun, own), dict(self.nodes))

    def of_database(self, database: Database) -> Database:
        """Return the changed accounts, users and QOS."""
        return with_database(database, filter(of_database, self.settings))


def _more(name: str, addition: Addition) -> str:
    """Return in words which nodes are added to a partition."""
    return f"{addition.count:,} more {'node' if addition.count == 1 else 'nodes'} of {name}"


def changed_cluster(base: SlurmConf, files: Sequence[Path], change: Change, zone: str) -> tuple[SlurmConf, list[str]]:
    """Return the changed settings, and a note for each part of the change without an effect on the model.

    A change without any effect is an InputError: both predictions would be the same.
    """

    def settings_of(part: Change) -> SlurmConf:
        conf = read(*files, plain=True, change=part.applied, database_change=part.of_database, zone=zone)
        conf.known_machine()
        return conf

    changed = settings_of(change)
    before, after = ([each.default for each in conf.known_machine().cluster.partitions] for conf in (base, changed))
    if any(before) and not any(after):
        what = "no partition of the changed slurm.conf is the default, so that Slurm refuses jobs that name none"
        hint = "make another one the default, too: Partition.NAME.Default=YES"
        raise InputError(what, where="; ".join(change.settings) or base.where, hint=hint)
    Setup.of("slurm", policy_parameters=changed.parameters).policy()  # checks the values
    if _alike(changed, base):
        words = change.words(lines_of(Path(base.where)))
        whys = "; ".join(dict.fromkeys(_why(setting) for setting in change.settings))
        what = f"{'; '.join(words)}: {whys or 'the cluster is the same'}, and the prediction would be the same"
        raise InputError(what, where=base.where, hint="change a setting that is modeled, or give another value")
    notes = []
    for part, rest in change.others:
        with suppress(InputError):  # a later part may need this one
            if rest and _alike(settings_of(rest), changed):
                notes.append(f"{part} has no part in the prediction: {_why(part)}")
    return changed, notes


def _why(setting: str) -> str:
    """Return why a setting has no effect on the model."""
    if not modeled(setting):
        return "the model has no rule for this"
    if of_database(setting):
        return "AccountingStorageEnforce of the slurm.conf has no limits, or other settings make it void"
    return (
        "the slurm.conf has this value, by Slurm's default or in other words, or other settings make it void, or the "
        "model has no rule for this value"
    )


def _alike(one: SlurmConf, other: SlurmConf) -> bool:
    """Return whether two files are one cluster for the model, however their lines divide the nodes."""

    def facts(conf: SlurmConf) -> list[Any]:
        machine = conf.known_machine().cluster
        nodes = [(name, kind.model_dump(exclude={"names"})) for name, kind in machine.nodes]
        partitions = [
            (each.model_dump(exclude={"nodes"}), machine.members(number))
            for number, each in enumerate(machine.partitions)
        ]
        rest = machine.model_dump(exclude={"kinds", "partitions"})
        if "limits" not in machine.enforced:
            for row in (*rest["database"]["associations"], *rest["database"]["qos"]):
                del row["limits"]
        return [nodes, partitions, rest, conf.parameters, conf.reservations]

    return facts(one) == facts(other)
