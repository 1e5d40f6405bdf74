"""Drawn calls on the table of a node, in C (tracebed_administrator.h, tracebed_malleable.h) and in Python."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracebed.benchmarks import node_table, ownership
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.node_table import NodeTable, bits
from tracebed.benchmarks.ownership import Flags

LIBRARY = "libtable_cases.so"
CALLS = r"""
#include "tracebed_administrator.h"
#include "tracebed_malleable.h"

static cpu_set_t set(const int *cpus, int count) {
    cpu_set_t found;
    CPU_ZERO(&found);
    while (count--) CPU_SET(cpus[count], &found);
    return found;
}
int call_create(tb_table *t, const char *path, const int *cpus, int count) {
    cpu_set_t found = set(cpus, count);
    return tb_create(t, path, &found);
}
int call_open(tb_table *t, const char *path) { return tb_open(t, path); }
void call_close(tb_table *t) { tb_close(t); }
int call_pids(tb_table *t, int *pids, int most) { return tb_pids(t, pids, most); }
int call_mask(tb_table *t, int pid, int *cpus, int *count) {
    cpu_set_t found;
    int cpu, result;
    CPU_ZERO(&found);
    result = tb_mask_of(t, pid, &found);
    for (cpu = *count = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &found)) cpus[(*count)++] = cpu;
    return result;
}
int call_set_mask(tb_table *t, int pid, const int *cpus, int count, int flags) {
    cpu_set_t found = set(cpus, count);
    return tb_set_mask(t, pid, &found, flags);
}
int call_prepare(tb_table *t, int pid, const int *cpus, int count, int flags) {
    cpu_set_t found = set(cpus, count);
    return tb_prepare(t, pid, &found, flags);
}
int call_finalize(tb_table *t, int pid, int flags) { return tb_finalize(t, pid, flags); }
int call_poll(tb_table *t, int pid) { /* as the process itself does */
    tb_change c;
    tb_entry e;
    if (tb_begin(&c, t) != TB_SUCCESS) return TB_NO_TABLE;
    if ((e = tb_find(&c, pid)) != NULL) {
        tb_put(e + 8, 1);
        tb_take_cpus(&c, e);
    }
    return tb_ended(&c, TB_SUCCESS);
}
int call_inherit(tb_table *t, int parent, const int *cpus, int count) {
    cpu_set_t wanted = set(cpus, count);
    tb_change c;
    tb_entry e;
    if (tb_begin(&c, t) != TB_SUCCESS) return TB_NO_TABLE;
    e = tb_find(&c, (int)getpid());
    if (e == NULL) e = tb_inherit(&c, parent, count ? &wanted : NULL);
    else e = NULL;
    if (e == NULL) return tb_ended(&c, TB_PERMISSION);
    tb_take_cpus(&c, e);
    return tb_ended(&c, tb_is_pending(&c, e) ? TB_NOTED : TB_SUCCESS);
}
"""
"""The calls for ctypes: CPUs are arrays."""


def build(folder: Path, *options: str) -> Path:
    """Compile the calls in `folder`. Raises CalledProcessError."""
    (folder / "calls.c").write_text(CALLS)
    command = ["gcc", *(options or ("-O1", "-std=c11", "-fPIC", "-shared")), "-Wall", "-Wextra", "-Werror"]
    include = Path(node_table.__file__).with_name("include")
    subprocess.run([*command, f"-I{include}", "-o", LIBRARY, "calls.c"], cwd=folder, check=True)
    return folder / LIBRARY


class Twin:
    """A table that the calls in C change."""

    def __init__(self, library: Path, path: Path, cpus: list[int]) -> None:
        self.calls = ctypes.CDLL(str(library))
        self.table = ctypes.create_string_buffer(256)
        assert self.calls.call_create(self.table, str(path).encode(), *self._cpus(cpus)) == 0

    @staticmethod
    def _cpus(cpus: list[int]) -> tuple[object, int]:
        return (ctypes.c_int * len(cpus))(*cpus), len(cpus)

    def pids(self) -> list[int]:
        found = (ctypes.c_int * 64)()
        return list(found[: self.calls.call_pids(self.table, found, 64)])

    def mask(self, pid: int) -> tuple[int, tuple[int, ...]]:
        found, count = (ctypes.c_int * 1024)(), ctypes.c_int()
        result = self.calls.call_mask(self.table, pid, found, ctypes.byref(count))
        return result, tuple(found[: count.value])

    def set_mask(self, pid: int, cpus: list[int], flags: int) -> int:
        return int(self.calls.call_set_mask(self.table, pid, *self._cpus(cpus), flags))

    def prepare(self, pid: int, cpus: list[int], flags: int) -> int:
        return int(self.calls.call_prepare(self.table, pid, *self._cpus(cpus), flags))

    def finalize(self, pid: int, flags: int) -> int:
        return int(self.calls.call_finalize(self.table, pid, flags))

    def poll(self, pid: int) -> None:
        self.calls.call_poll(self.table, pid)

    def inherit(self, parent: int, cpus: list[int]) -> int:
        return int(self.calls.call_inherit(self.table, parent, *self._cpus(cpus)))

    def close(self) -> None:
        self.calls.call_close(self.table)


def poll(table: NodeTable, pid: int) -> None:
    """Release and take CPUs as the process `pid` does."""
    with table.transaction() as found:
        if pid in found.entries:
            found.entries[pid].registered = True
            ownership.take(found, found.entries[pid])


def inherit(table: NodeTable, parent: int, cpus: list[int]) -> int:
    """Register this process with CPUs that were prepared for a parent."""
    with table.transaction() as found:
        source = None if os.getpid() in found.entries else ownership.alive_entry(found, parent)
        if source is None or source.registered:
            return ownership.DromResult.PERMISSION
        return ownership.register(found, os.getpid(), source, bits(cpus) if cpus else None)


def content(path: Path) -> tuple[object, ...]:
    """Return the posts, the CPUs of the node and the entries of a table."""
    table = NodeTable(path)
    with table.transaction() as found:
        entries = [
            (entry.slot, entry.pid, entry.registered, entry.started, entry.held, entry.target, entry.taken)
            for entry in found.entries.values()
        ]
        posts = tuple(table.posts(slot) for slot in range(16))
    table.close()
    return posts, found.node, entries


@contextmanager
def processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield processes that do nothing."""
    found = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


def compared(library: Path, seed: int, calls: int = 120) -> str | None:
    """Return how the tables differ after drawn calls; None: they are equal after each call."""
    draw = random.Random(seed)
    node = sorted(draw.sample(range(draw.choice([8, 20, 200])), draw.randint(1, 8)))
    with tempfile.TemporaryDirectory() as name, processes(5) as others:
        c, python = Path(name, "c"), Path(name, "python")
        twin, table = Twin(library, c, node), NodeTable.create(python, node)
        administrator = Administrator(table)
        pids = [os.getpid(), *(process.pid for process in others), 2**22 + 1]
        try:
            for number in range(calls):
                pid, flags = draw.choice(pids), draw.choice([0, 0, 1, 1, 1, 9, 8])
                cpus = draw.sample(node, draw.randint(0, len(node)))
                if draw.random() < 0.02:
                    cpus.append(draw.choice([node[-1] + 1, 1000]))
                what = draw.choice(["prepare", "prepare", "mask", "set", "set", "set", "poll", "poll", "pids", "end"])
                if draw.random() < 0.1:
                    what = "inherit"
                results: tuple[object, object] = (0, 0)
                match what:
                    case "prepare":
                        results = twin.prepare(pid, cpus, flags), administrator.prepare(pid, cpus, Flags(flags))[0]
                    case "mask":
                        results = twin.mask(pid), administrator.mask(pid)
                    case "set":
                        results = (
                            twin.set_mask(pid, cpus, flags),
                            administrator.set_mask(pid, cpus, Flags(flags)),
                        )
                    case "poll":
                        twin.poll(pid)
                        poll(table, pid)
                    case "pids":
                        results = twin.pids(), administrator.pids()
                    case "inherit":
                        results = twin.inherit(pid, cpus), inherit(table, pid, cpus)
                    case "end" if draw.random() < 0.2 and len(others) > 1:
                        process = others[draw.randrange(len(others))]
                        process.kill()
                        process.wait()
                    case _:
                        flags = draw.choice([0, 2])
                        results = twin.finalize(pid, flags), administrator.finalize(pid, Flags(flags))
                tables = content(c), content(python)
                if results[0] != results[1] or tables[0] != tables[1]:
                    return f"call {number} ({what} {pids.index(pid)} {cpus} {flags}): {results}, {tables}"
        finally:
            twin.close()
            table.close()
    return None
