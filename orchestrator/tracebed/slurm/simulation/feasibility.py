"""Whether nodes can ever run a job: the features that it demands, and why no nodes of its partition suffice.

Source of the features (`--constraint`): sbatch(1) of Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.simulation import engine
from tracebed.slurm.simulation.resources import Request, Resources

NEVER_RUN = "no nodes of its partition can ever run it"
CLOSING = {"(": ")", "[": "]"}


def satisfies(features: Sequence[str], demanded: str) -> bool:
    """Return whether a node with `features` may be one of the nodes of a job that demands `demanded`.

    Names are joined by & (all) or | (one); & comes first, and parentheses are evaluated before. The nodes of a job
    with brackets are of several kinds, `[ib*2&big*1]`, or of any one kind, `[rack1|rack2]`: a node has one of these.
    Counts, such as `ib*2`, are left out.
    """
    if not demanded:
        return True
    tokens = re.findall(r"[^\s&|,()\[\]*]+|[&|,()\[\]]", re.sub(r"\*\d+", "", demanded))
    try:
        found, end = _evaluated(features, tokens, 0, "", False)
        if end <= len(tokens):
            raise ValueError
    except ValueError:
        raise InputError(f"features {demanded!r} are invalid", hint="use names joined by & or |") from None
    return found


def _evaluated(features: Sequence[str], tokens: Sequence[str], at: int, closing: str, either: bool) -> tuple[bool, int]:
    """Return the value of the tokens from `at` to a closing bracket, and the index after it.

    `either`: whether & joins as | does. Raises ValueError if the tokens are not names that are joined.
    """
    found, every = False, True
    while at < len(tokens):
        token = tokens[at]
        if token in CLOSING:
            value, at = _evaluated(features, tokens, at + 1, CLOSING[token], either or token == "[")
        elif token in "&|,)]":
            raise ValueError
        else:
            value, at = token in features, at + 1
        every = every and value
        joint = tokens[at] if at < len(tokens) else ""
        at += 1
        if either or joint in ("|", closing):
            found, every = found or every, True
        if joint == closing:
            return found, at
        if joint not in ("&", ",", "|"):
            raise ValueError
    raise ValueError


def fits(empty: Resources, request: Request) -> bool:
    """Return whether a job fits on its eligible nodes if all nodes are empty."""
    sizes = [size for node in nodes_of(request.eligible) if (size := empty.capacity(request, node))]
    # on each further node of a job that shares its nodes, one core is left
    enough = request.whole or request.cores >= request.fewest
    if not enough or len(sizes) < request.fewest or sum(sizes) < request.cores:
        return False
    return not empty.switches or request.least_loaded or engine.fits(empty, request)


def lacking(cluster: SlurmCluster, empty: Resources, request: Request, nodes: Sequence[int], features: str) -> str:
    """Return what a job demands beyond the empty `nodes`: those of its partition that have the `features`."""
    if not nodes:
        return f"no node has the features {features}"
    plain = request._replace(gres=(0,) * len(request.gres), memory=0, by_core=False, eligible=mask_of(nodes))
    able = [node for node in nodes if empty.capacity(plain, node)]
    if not able:
        most = max(empty.capacity(plain._replace(per_node=0), node) for node in nodes)
        return f"{counted(request.per_node, 'core')} on a node are demanded, and a node has {most:,} at most"
    if request.memory > 0:
        used = max(1, request.per_node) if request.by_core else 1
        wanted, most = request.memory * used, max(empty.total_memory[node] for node in able)
        if wanted > most:
            return f"{wanted:,} MiB of memory on a node are demanded, and a node has {most:,} at most"
        able = [node for node in able if empty.total_memory[node] >= wanted]
    for kind, wanted in zip(cluster.gres, request.gres, strict=True):
        most = max((empty.gres[node][cluster.gres.index(kind)] for node in able), default=0)
        if wanted > most:
            return f"{wanted:,} of the generic resource {kind} on a node are demanded, and a node has {most:,} at most"
    sizes = [size for node in able if (size := empty.capacity(request, node))]
    if len(sizes) < request.fewest:
        return f"{counted(request.fewest, 'node')} with these resources are demanded, of {len(sizes):,}"
    if sum(sizes) >= request.cores:
        return "no switch of topology.conf reaches enough nodes with these resources"
    return f"{counted(request.cores, 'core')} with these resources are demanded, of {sum(sizes):,}"
