"""The scheduling parameters of a slurm.conf as parameters of the policy `slurm`, and settings without a model."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tracebed.ground.display import listed
from tracebed.ground.errors import InputError
from tracebed.machine.power import NodePower
from tracebed.machine.sources import MachineSource, has_line
from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.scheduling.policies.registry import load
from tracebed.orchestrator.scheduling.policies.slurm import OF_CONF, RELEASES
from tracebed.slurm import reservations, topology
from tracebed.slurm.conf_keys import (
    ACCESS,
    GROUPS,
    ITEMS,
    ITEMS_OF_CLUSTER,
    MODELED,
    MODELED_WITH_CLUSTER,
    NODE_GROUPS,
    OF_CLUSTER,
    OFF,
    PARTITION_GROUPS,
    PRIORITY,
    SCHEDULER_OF_CLUSTER,
    SCHEDULER_OF_WHOLE_NODES,
    SCHEDULER_WITHOUT_EFFECT,
    STATES,
)
from tracebed.slurm.conf_lines import (
    HINT,
    Line,
    available,
    hosts,
    hosts_of,
    layout_of,
    lines_of,
    node_lines,
    partition_lines,
    state_of,
    whole,
)
from tracebed.slurm.database import (
    CONF,
    DUMP,
    POWER,
    QOS,
    RESERVATIONS,
    Database,
    kind_of,
    read_dump,
    read_qos,
    read_qos_of_dump,
)
from tracebed.slurm.layer_settings import unsuitable
from tracebed.slurm.machine import SlurmCluster, SlurmMachine, machine_of
from tracebed.slurm.power_saving import KEYS, read_power, rules_of
from tracebed.slurm.reservations import Reservation

NAMES = {
    name.lower(): name for name in ("SchedulerType", "SelectType", "PriorityType", "TopologyPlugin", "PreemptType")
}
CHANGED_DEFAULTS = ("SelectType", "PriorityType")
"""Keys of `MODELED` whose defaults differ between versions of Slurm."""
SHARED_BY_ALL = ("Priority", "PriorityJobFactor", "PriorityTier")
"""Settings of partitions with the default 1 that have no effect if all partitions have the same value."""
NO_POWER = (
    "how long nodes boot is not in a slurm.conf, so that no node is switched off (give a file of their power, -P @FILE)"
)
NO_QOS = "which QOS preempts which is not in a slurm.conf; with PreemptType=preempt/qos, no job preempts another one"
SECOND_US = 1_000_000
MOST_SHOWN = 12
REMEDY = "tracebed clean LOG --recipe sacct --only partition=NAME"
"""Command that selects the jobs of a partition of a log."""

NO_LIMITS = "are not in a slurm.conf: jobs that they hold start"
EQUAL_SHARES = (
    "the shares of accounts and users are not in a slurm.conf; all of a level are assumed to be equal "
    "(give the output of `sacctmgr dump CLUSTER`, too)"
)
PRIORITY_FLAGS = frozenset(
    (
        *("max_tres", "no_fair_tree", "no_normal_all", "no_normal_assoc", "no_normal_part", "no_normal_qos"),
        *("no_normal_tres", "small_relative_to_time"),
    )
)
"""`PriorityFlags` that are modeled."""
SHARING = ("mps", "shard")
"""Generic resources that are shares of GPUs."""


@dataclass(frozen=True)
class SlurmConf:
    """The scheduling settings of a slurm.conf.

    Attributes:
        parameters: parameters of the policy `slurm`: name -> value as text.
        differences: settings that the policy does not model, one sentence for each group of settings.
        sizes: CPUs per node -> number of nodes; 0: unknown. Empty if the file names no nodes.
        where: the file.
        cluster: the cluster, if jobs share nodes, nodes or partitions differ, or jobs have priorities; else None.
        reservations: its advance reservations; None: unknown.
        of_layer: settings that do not suit a layer that resizes jobs, one sentence each.
    """

    parameters: dict[str, str]
    differences: tuple[str, ...]
    sizes: Mapping[int, int]
    where: str = ""
    cluster: SlurmCluster | None = None
    reservations: tuple[Reservation, ...] | None = None
    of_layer: tuple[str, ...] = ()

    def noted(self, parameters: Mapping[str, str]) -> tuple[str, ...]:
        """Return what a user should know of the file in a simulation with these parameters of the policy."""
        return (*self.differences, *(self.of_layer if parameters.get("resizes", "none") != "none" else ()))

    @cached_property
    def machine(self) -> SlurmMachine | None:
        """The machine of the cluster."""
        return None if self.cluster is None else SlurmMachine.of(self.cluster, self.reservations, self.parameters)

    def known_machine(self) -> SlurmMachine:
        """Return the machine. Raise InputError if the file describes none."""
        if (machine := self.machine) is None:
            raise _without_nodes(self.where)
        return machine

    def check_machine(self, nodes: int | None) -> None:
        """Raise InputError if a machine of `nodes` equal nodes contradicts the nodes of the file.

        A file with nodes of several sizes describes several machines of equal nodes. A machine with more nodes than
        the largest of them mixes the sizes.
        """
        if self.cluster or nodes is None or len(self.sizes) < 2 or nodes <= max(self.sizes.values()):
            return
        raise InputError(
            f"the machine of the workload has {nodes:,} equal nodes, but the file has {_sizes(self.sizes)}",
            where=self.where,
            hint=f"select the jobs of a partition of equal nodes: {REMEDY} --system NODESxCORES",
        )


def read(
    *paths: Path,
    plain: bool = False,
    change: Callable[[Sequence[Line]], Sequence[Line]] | None = None,
    database_change: Callable[[Database], Database] | None = None,
    zone: str = "",
) -> SlurmConf:
    """Read a slurm.conf with the files that it includes, and the output of sacctmgr. The last value of a key counts.

    A file in which half of the keys are unknown is refused. Fewer unknown keys may belong to a newer version of Slurm.

    Args:
        paths: the slurm.conf, and, if known, the output of `sacctmgr dump CLUSTER`, of `sacctmgr -P show qos` and of
            `scontrol show reservation`, and the power of the nodes (`power_saving.read_power`), in any order. The
            content says what a file is.
        plain: whether a cluster of equal nodes in one partition is a cluster, too.
        change: a function from the lines of the slurm.conf to those that count.
        database_change: the same for the accounts, users and QOS of the other files.
        zone: time zone of the dates of reservations; empty: UTC, with a sentence.
    """
    found = _sorted(paths, zone)
    lines: Sequence[Line] = lines_of(found.conf)
    lines = lines if change is None else change(lines)
    plain = plain or found.reservations is not None  # only a cluster has advance reservations
    database, ignored = found.database, found.ignored
    database = database if database_change is None else database_change(database)
    conf = of_lines(lines, found.conf, plain=plain, database=database, ignored=ignored, power=found.power)
    return replace(conf, reservations=found.reservations, differences=(*conf.differences, *found.sentences))


def of_lines(
    lines: Sequence[Line],
    path: Path,
    *,
    plain: bool = False,
    database: Database | None = None,
    ignored: Sequence[str] = (),
    power: Mapping[str, NodePower] | None = None,
) -> SlurmConf:
    """Return the scheduling settings of the lines of a slurm.conf.

    `path` is for messages and for topology.conf beside it, `plain` as of `read`, `ignored` has the settings of the
    database that are not modeled, and `power` is that of the nodes by name.
    """
    if not lines:
        raise InputError("contains no settings", where=str(path), hint=HINT)
    unknown = [setting for line in lines for setting in line.unknown]
    if 2 * len(unknown) >= len(lines):
        what = f"unknown {'keys' if len(unknown) > 1 else 'key'}, such as {unknown[0][:60]!r}: not a slurm.conf"
        raise InputError(what, where=next(line.where for line in lines if line.unknown), hint=HINT)
    values = {line.key.lower(): line.value for line in lines}
    partitions, nodes = partition_lines(lines), node_lines(lines)
    names = [name for line in nodes for name in hosts_of(line.value, line.where)]
    switches, gaps = topology.read(values, path, names)
    machine = machine_of(lines, path, database, switches, power)
    machine = None if machine is None or (machine.plain and not plain) else machine
    modeled = MODELED if machine is None else MODELED_WITH_CLUSTER
    scheduler = SCHEDULER_OF_WHOLE_NODES if machine is None else SCHEDULER_OF_CLUSTER
    conf = of_config({line.key: line.value for line in lines}, modeled, scheduler)
    try:
        load("slurm", conf.parameters)
    except InputError as error:
        where = [line.where for line in lines if line.key.lower() == "schedulerparameters"]
        raise InputError(error.what, where=where[-1], hint=error.hint) from error
    unset = (
        f"{key} is not set, and its default depends on the version of Slurm; {MODELED[key.lower()][0]} is assumed"
        for key in CHANGED_DEFAULTS
        if key.lower() not in values
    )
    sizes = Counter[int]()
    for line in filter(available, nodes):
        sizes[layout_of(line).cpus] += hosts(line.value)
    others = [_group("an unknown kind", unknown)] if unknown else []
    known = frozenset[str]() if machine is None else OF_CLUSTER
    of_nodes = known
    if machine and machine.saving:
        known |= KEYS
    differences = (
        *conf.differences,
        *others,
        *unset,
        *_of_lines(lines, known),
        *_of_partitions(partitions, known),
        *_of_nodes(nodes, sizes, of_nodes),
        *([NO_POWER] if rules_of(values, partitions) and not (machine and machine.saving) else []),
        *(_of_database(machine, ignored) if machine else ()),
        *gaps,
        *([NO_QOS] if machine and machine.preempt.by_qos and not machine.database.qos else []),
    )
    notes = tuple(unsuitable(values, machine))
    return SlurmConf(conf.parameters, differences, dict(sizes), str(path), machine, of_layer=notes)


def read_machine(*paths: Path) -> SlurmMachine:
    """Return the machine of the files that `read` takes. Warn of each group of settings that is not modeled."""
    conf = read(*paths, plain=True)
    machine = conf.known_machine()
    for difference in conf.differences:
        warnings.warn(f"{', '.join(map(str, paths))}: {difference}", stacklevel=2)
    return machine


SOURCE = MachineSource(
    "a slurm.conf",
    lambda path: has_line(path, r"^\s*(ClusterName|ControlMachine|NodeName|PartitionName|S(elect|lurm)\w+)\s*="),
    read_machine,
    several=True,
    machine=SlurmMachine,
)
"""The slurm.conf of a cluster, with the topology.conf beside it."""


@dataclass
class _Files:
    """What files of Slurm contain."""

    conf: Path
    """The slurm.conf."""
    database: Database = field(default_factory=Database)
    ignored: list[str] = field(default_factory=list)
    """Settings of the database that are not modeled."""
    reservations: tuple[Reservation, ...] | None = None
    power: dict[str, NodePower] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    """About the reservations."""


def _sorted(paths: Sequence[Path], zone: str) -> _Files:
    """Return the contents of files, of one kind each."""
    kinds: dict[str, Path] = {}
    texts: dict[str, str] = {}
    for path in paths:
        kind, texts[kind] = kind_of(path)
        if kind in kinds:
            raise InputError(f"{kinds[kind]} is a {kind}, too", where=str(path), hint="give one file of each kind")
        kinds[kind] = path
    if CONF not in kinds:
        raise InputError("the slurm.conf is missing", where=str(paths[0]), hint="give -P @slurm.conf, too")
    found = _Files(kinds[CONF])
    for kind, path in kinds.items():
        text, more = texts[kind], list[str]()
        if kind == DUMP:
            associations, more = read_dump(text, str(path))
            found.database = found.database.model_copy(update={"associations": associations})
            if QOS not in kinds:
                qos, of_qos = read_qos_of_dump(text, str(path))
                found.database = found.database.model_copy(update={"qos": qos})
                more += of_qos
        elif kind == QOS:
            qos, more = read_qos(text, str(path))
            found.database = found.database.model_copy(update={"qos": qos})
        elif kind == RESERVATIONS:
            found.reservations, sentences = reservations.read(text, str(path), zone)
            found.sentences += sentences
        elif kind == POWER:
            found.power = read_power(text, str(path))
        found.ignored += more
    return found


def of_config(
    config: Mapping[str, str],
    modeled: Mapping[str, Sequence[str]] = MODELED,
    scheduler: Collection[str] = SCHEDULER_OF_WHOLE_NODES,
) -> SlurmConf:
    """Return the scheduling settings of a configuration (key -> value). The keys are not case-sensitive.

    `modeled` has the values of some keys that are modeled, `scheduler` further SchedulerParameters that are modeled or
    have no effect.
    """
    keys = {key.lower(): value for key, value in config.items()}
    parameters: dict[str, str] = {}
    differences, unmodeled = [], []
    for text in filter(None, keys.get("schedulerparameters", "").split(",")):
        name, _, value = (part.strip() for part in text.partition("="))
        name = name.lower()
        if name in OF_CONF:
            parameters.setdefault(name, value)  # Slurm takes the first
        elif name == "sched_min_interval" and whole(value, SECOND_US) < SECOND_US:
            continue  # shorter than the period of the loop
        elif name not in SCHEDULER_WITHOUT_EFFECT and name not in scheduler:
            unmodeled.append(text.strip())
    if unmodeled:
        differences.append(_group("the scheduler", [f"SchedulerParameters {text}" for text in unmodeled]))
    if keys.get("schedulertype", "").lower() == "sched/builtin":
        parameters["bf_interval"] = "-1"
    for key, values in modeled.items():
        if key in keys and keys[key].lower() not in values:
            differences.append(f"{NAMES[key]}={keys[key]} is not modeled; {values[0]} is assumed")
    return SlurmConf(parameters, tuple(differences), {})


def with_release(parameters: Mapping[str, str], version: str) -> tuple[dict[str, str], list[str]]:
    """Return parameters of the policy `slurm` with the release of a version of Slurm, such as 22.05.8, if it is one.

    A release with unknown rules has those of the last known one before it, and a sentence says so.
    """
    release = re.match(r"\d\d\.\d\d(?=\.|-|$)", version)
    if release is None:
        return dict(parameters), []
    known = max((each for each in RELEASES if each <= float(release[0])), default=RELEASES[0])
    same = known == float(release[0])
    says = f"the rules of Slurm {release[0]} are unknown: those of {known:.2f} are assumed"
    return {"release": f"{known:.2f}", **parameters}, [] if same else [says]


def slurm_conf(path: Path | str | Sequence[Path | str], nodes: int | None = None, *, plain: bool = False) -> SlurmConf:
    """Return what a slurm.conf says: the `parameters` of the policy `slurm`, and the `machine`, if its nodes are one.

    Args:
        path: the file, or the file and what Slurm keeps in its database: the output of `sacctmgr dump CLUSTER` and of
            `sacctmgr -P show qos`. The content says what a file is.
        nodes: nodes of the machine of the workload; None: unknown.
        plain: whether equal nodes in one partition are the machine, too: that of a workload whose machine is unknown.

    Returns:
        The settings; `differences` has a sentence for each group of settings that are not modeled.

    Raises:
        InputError: the file cannot be read or is not a slurm.conf, or its nodes contradict `nodes`.

    Example:
        >>> import tracebed.api as tb
        >>> _ = Path("slurm.conf").write_text("SchedulerParameters=bf_window=2880")
        >>> tb.slurm_conf("slurm.conf").parameters["bf_window"]
        '2880'
    """
    paths = [path] if isinstance(path, str | Path) else path
    conf = read(*map(Path, paths), plain=plain)
    conf.check_machine(nodes)
    return conf


def _without_nodes(where: str) -> InputError:
    hint = "give the slurm.conf of the cluster, with its lines NodeName=... CPUs=..."
    return InputError("names no nodes with a known number of CPUs", where=where, hint=hint)


class SlurmConfiguration:
    """The files of Slurm: a slurm.conf, and what Slurm keeps in its database."""

    def read(self, *paths: Path) -> SlurmConf:
        """Read files as `read` does."""
        return read(*paths)

    def read_with(self, path: Path) -> Iterator[Path]:
        """Yield the slurm.conf, the files that it includes, and its topology.conf. The output of sacctmgr: nothing."""
        try:
            yield from {Path(line.where.rpartition(":")[0]) for line in lines_of(path)}
        except InputError:  # the output of sacctmgr
            return
        if (topology_conf := path.with_name("topology.conf")).is_file():
            yield topology_conf

    def parameters_of(self, info: RunInfo) -> dict[str, str]:
        """Return parameters and release of a run of Slurm. Warn if the rules of the release are unknown."""
        config = of_config(info.policy_parameters).parameters
        parameters, unknown = with_release(config, info.batch.get("version", ""))
        for sentence in unknown:
            warnings.warn(sentence, stacklevel=3)
        return parameters


SLURM = SlurmConfiguration()


def _of_lines(lines: Sequence[Line], modeled: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each group of keys of whole lines that the policy does not model."""
    last = {line.key.lower(): line for line in lines}
    basic = last["prioritytype"].value.lower() == "priority/basic" if "prioritytype" in last else False
    for group, keys in GROUPS.items():
        if group == PRIORITY and basic:  # Slurm ignores the keys then
            continue
        given = [last[key.lower()] for key in keys if key.lower() in last]
        parts = ((line.key, _unmodeled(line.key, line.value, modeled)) for line in given)
        shown = [f"{key}={value}" for key, value in parts if value]
        if shown:
            yield _group(group, shown)
    shown = [f"{line.key}={line.value}" for line in lines if line.key.lower() in ("downnodes", "frontendname")]
    if shown:
        yield _group(STATES, shown)


def _of_partitions(partitions: Sequence[Line], modeled: Collection[str]) -> Iterator[str]:
    """Yield the differences of the PartitionName lines."""
    if len(partitions) > 1 and not modeled:
        names = _listed([line.value for line in partitions])
        yield (
            f"{len(partitions)} partitions ({names}) are not modeled; all jobs wait in one queue for all nodes "
            f"(select the jobs of a partition: {REMEDY})"
        )
    yield from _by_line("partition", PARTITION_GROUPS, partitions, modeled)


def _of_nodes(nodes: Sequence[Line], sizes: Mapping[int, int], modeled: Collection[str]) -> Iterator[str]:
    """Yield the differences of the NodeName lines."""
    if len(nodes) > 1 and not modeled:
        names = _listed([line.value for line in nodes])
        yield (
            f"{len(nodes)} NodeName lines ({names}), {_sizes(sizes)}: not modeled; all nodes are equal, "
            "and Slurm chooses nodes line by line"
        )
    for line in nodes:
        if not available(line) and state_of(line) != "FUTURE":
            yield f"nodes {line.value} have State={line.of('State')} in the slurm.conf: no job starts on them"
    yield from _by_line("node", NODE_GROUPS, nodes, modeled)


def _by_line(
    kind: str, groups: Mapping[str, Sequence[str]], lines: Sequence[Line], modeled: Collection[str]
) -> Iterator[str]:
    """Yield a sentence for each group of keys of the lines of partitions or nodes that the policy does not model."""
    for group, keys in groups.items():
        shown = []
        for key in keys:
            if key in SHARED_BY_ALL and len({line.of(key) or "1" for line in lines}) < 2:
                continue
            known = (line for line in lines if (kind, key) != ("node", "State") or available(line))
            given = ((line.value, _unmodeled(key, line.of(key), modeled)) for line in known)
            off = ("all",) if group == ACCESS else ()
            shown += [f"{key}={value} ({name})" for name, value in given if value and value.lower() not in off]
        if shown:
            yield _group(f"{group} by {kind}", shown)


def _of_database(machine: SlurmCluster, ignored: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each group of settings of the database that is missing, or not modeled (`ignored`)."""
    database, weights = machine.database, machine.weights
    if weights.fairshare and not database.associations:
        yield EQUAL_SHARES
    limited = "limits" in machine.enforced
    lacking = [
        *(["accounts and users (`sacctmgr dump CLUSTER`)"] if not database.associations else []),
        *(["QOS (`sacctmgr -P show qos`)"] if not database.qos else []),
    ]
    if limited and lacking:
        yield f"limits of {' and '.join(lacking)} {NO_LIMITS}"
    if weights.qos and not database.qos:
        which = "priorities of QOS (`sacctmgr -P show qos`) are not in a slurm.conf"
        yield f"PriorityWeightQOS={weights.qos} has no effect: {which}"
    named = [partition.qos for partition in machine.partitions if partition.qos]
    named += [each.default_qos for each in database.associations if each.default_qos]
    lost = [name for name in dict.fromkeys(named) if name not in {qos.name for qos in database.qos}]
    if database.qos and lost:
        names = listed(lost, MOST_SHOWN)
        yield f"the QOS {names} are not in the table of QOS: their priority is 0, and they have no limits"
    if limited and ignored:
        count = f"{len(ignored)} settings" if len(ignored) > 1 else "1 setting"
        names = listed(ignored, MOST_SHOWN)
        yield f"{count} of QOS and accounts not modeled, so that jobs that Slurm holds start: {names}"
    yield from _of_cores(machine)
    shared = [name for name in SHARING if any(name in kind.gres for kind in machine.kinds)]
    if shared:
        yield f"the generic resources {' and '.join(shared)} are counted beside the GPUs that they share"
    flags = [flag.upper() for flag in weights.flags if flag not in PRIORITY_FLAGS]
    if flags:
        yield f"PriorityFlags={listed(flags, MOST_SHOWN)} not modeled; jobs may have another order"


def _of_cores(machine: SlurmCluster) -> Iterator[str]:
    """Yield a sentence for each assumption about the cores that a job gets."""
    threads = sorted({kind.threads for kind in machine.kinds})
    if len(threads) > 1:
        values = listed([str(each) for each in threads], MOST_SHOWN)
        yield f"ThreadsPerCore={values}: the cores of the run are CPUs, and a job holds all CPUs of its cores"
    if machine.exact_cpus and threads[-1] > 1:
        yield "CR_CPU: memory for each CPU and billing are those of all CPUs of a core; Slurm's are those asked for"
    by_socket = {
        node for number, each in enumerate(machine.partitions) if each.sockets for node in machine.members(number)
    }
    others = [
        each.name
        for number, each in enumerate(machine.partitions)
        if not (each.sockets or each.exclusive) and by_socket.intersection(machine.members(number))
    ]
    if others:
        names = listed(others, MOST_SHOWN)
        yield f"CR_Socket: jobs of the partitions {names} share sockets; on which socket a job runs is not modeled"


def _unmodeled(key: str, value: str, modeled: Collection[str]) -> str:
    """Return what the policy does not model of the value of a key; empty: nothing that has an effect."""
    name = key.lower()
    if value.lower() in OFF or (name in modeled and name not in ITEMS_OF_CLUSTER):
        return ""
    known = ITEMS.get(name, frozenset()) | (ITEMS_OF_CLUSTER.get(name, frozenset()) if modeled else frozenset())
    if not known:
        return value
    items = filter(None, map(str.strip, value.split(",")))
    return ",".join(item for item in items if item.lower() not in OFF and item.partition("=")[0].lower() not in known)


def _group(group: str, shown: Sequence[str]) -> str:
    """Return the sentence about settings of one group that the policy does not model."""
    count = f"{len(shown)} settings of {group} are" if len(shown) > 1 else f"1 setting of {group} is"
    return f"{count} not modeled: {_listed(shown)}"


def _listed(names: Sequence[str]) -> str:
    return listed([name if len(name) <= 100 else f"{name[:97]}..." for name in names], MOST_SHOWN)


def _sizes(sizes: Mapping[int, int]) -> str:
    """Return the nodes of each size as text."""
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{nodes:,} nodes of {cpus or 'unknown'} CPUs" for cpus, nodes in largest)
