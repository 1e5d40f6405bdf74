"""Checks of the status, as `dmr_check_status`: the rule, the resource manager of a node, and programs that ask.

Programs in Python, in C, and in C with MPI.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.answering import Answering
from tests.patience import GUARD_S
from tracebed import malleable
from tracebed.benchmarks.dmr import Action, Answer, SizeRange, check_status
from tracebed.benchmarks.dmr_manager import NodeCpus, ResourceManager, request_decision
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.lines import decode
from tracebed.benchmarks.mpi.launch import LOOPBACK, ROOT, compiler, mpiexec, run_until
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.unmodified import INCLUDE
from tracebed.ground.errors import InputError, TestbedError

PAPER = SizeRange(3, 6, 12)
"""The sizes of HPG-aligner in the paper: 3 to 12 processes, preferred 6."""


@pytest.mark.parametrize(
    ("size", "idle", "waiting", "answer"),
    [
        (12, 0, [], Answer(Action.NONE, 12)),
        (12, 0, [3], Answer(Action.SHRINK, 6)),  # to the preferred size, although 9 would be enough
        (12, 0, [9], Answer(Action.SHRINK, 3)),  # the preferred size does not suffice
        (12, 0, [10], Answer(Action.NONE, 12)),  # no shrink would help
        (12, 0, [10, 3], Answer(Action.SHRINK, 6)),  # a later job can start
        (12, 2, [3], Answer(Action.SHRINK, 6)),
        (12, 3, [3], Answer(Action.NONE, 12)),  # the job can start without a shrink
        (6, 0, [3], Answer(Action.SHRINK, 3)),
        (3, 0, [3], Answer(Action.NONE, 3)),
        (3, 4, [], Answer(Action.EXPAND, 7)),
        (3, 40, [], Answer(Action.EXPAND, 12)),
        (3, 4, [4], Answer(Action.NONE, 3)),  # the waiting job can use the idle processors
        (3, 4, [8], Answer(Action.EXPAND, 7)),  # it cannot use them, and a shrink would not help
        (6, 4, [7], Answer(Action.SHRINK, 3)),
        (20, 5, [], Answer(Action.NONE, 20)),  # above its largest size: no action
    ],
)
def test_a_check_shrinks_for_waiting_jobs_and_expands_onto_idle_processors(
    size: int, idle: int, waiting: list[int], answer: Answer
) -> None:
    assert check_status(size, PAPER, idle, waiting) == answer


@pytest.mark.parametrize("sizes", [(0, 1, 2), (2, 1, 3), (1, 4, 3), (1, 2.5, 3), (True, 1, 1)])
def test_invalid_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="are invalid"):
        SizeRange(*sizes).checked()
    with malleable.attach() as m, pytest.raises(InputError, match="are invalid"):
        m.check(sizes[0], sizes[2], sizes[1])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[NodeTable]:
    made = NodeTable.create(tmp_path / "table", range(8))
    yield made
    made.close()


PROGRAM = """
import sys
from tracebed import malleable
with malleable.attach(pin=False) as m:
    print(0, *m.cpus, flush=True)
    for line in sys.stdin:
        print(int(m.check(2, 6, 4)), *m.cpus, flush=True)
"""


PROGRAM_IN_C = r"""
#include "tracebed_malleable.h"
static void print(int changed, const cpu_set_t *cpus) {
    int cpu;
    printf("%d", changed);
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, cpus)) printf(" %d", cpu);
    printf("\n");
    fflush(stdout);
}
int main(void) {
    tb_malleable m;
    char line[80];
    tb_attach(&m);
    print(0, &m.cpus);
    while (fgets(line, sizeof line, stdin) != NULL) {
        int changed = tb_check(&m, 2, 6, 4);
        print(changed, &m.cpus);
    }
    tb_detach(&m);
    return 0;
}
"""
SIZES_IN_C = r"""
#include "tracebed_dmr.h"
int main(int argc, char **argv) {
    int size = atoi(argv[1]), step;
    for (step = 2; step < argc; step++) {
        tb_dmr_action action = tb_dmr_request(size, 1, 9, atoi(argv[step]), &size);
        printf("%d %d\n", (int)action, size);
    }
    return 0;
}
"""
"""A program that prints the action and the size of each check."""
RING_IN_C = r"""
#include <mpi.h>
#include "tracebed_dmr.h"
/* Each process has the number of steps done. Process r >= before gets it from process r % before. */
static void redistribute(tb_dmr *d, int *data) {
    int rank, to;
    MPI_Comm_rank(d->handler, &rank);
    if (d->joined) tb_dmr_from(d, rank % d->before, data, 2, MPI_INT);
    else
        for (to = 0; to < d->size; to++)
            if (to % d->before == rank) tb_dmr_onto(d, to, data, 2, MPI_INT);
}
int main(int argc, char **argv) {
    tb_dmr d;
    MPI_Comm handler;
    int rank, size, after, sum, stays = 1, data[2] = {0, 7};
    MPI_Init(&argc, &argv);
    tb_dmr_start(&d, argv);
    if (d.joined) {
        data[1] = 0;
        redistribute(&d, data);
        tb_dmr_resume(&d);
    }
    while (data[0] < atoi(argv[1])) {
        MPI_Comm_size(d.comm, &size);
        MPI_Comm_rank(d.comm, &rank);
        MPI_Allreduce(&data[1], &sum, 1, MPI_INT, MPI_SUM, d.comm);
        if (rank == 0) printf("step %d: %d processes, sum %d\n", data[0], size, sum), fflush(stdout);
        data[0]++;
        tb_dmr_action action = tb_dmr_check_status(&d, 1, 4, 2, &after, &handler);
        if (action != TB_DMR_NONE) {
            int both;
            MPI_Comm_size(handler, &both);
            if (rank == 0) printf("action %d to %d, handler of %d\n", (int)action, after, both);
            redistribute(&d, data);
            if (!(stays = tb_dmr_resume(&d))) break;
        }
    }
    if (stays && d.comm == MPI_COMM_NULL) MPI_Abort(MPI_COMM_WORLD, 3);
    tb_dmr_end(&d);
    MPI_Finalize();
    return 0;
}
"""
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None, reason="pip install 'tracebed[mpi]'")
STRICT = ("-O1", "-Wall", "-Wextra", "-Werror", "-std=c11", f"-I{INCLUDE}")


def compiled(folder: Path, source: str, *command: str) -> str:
    """Return the program that a compiler makes of a source."""
    (folder / "program.c").write_text(source)
    subprocess.run([*(command or ("gcc",)), *STRICT, "program.c", "-o", "program"], cwd=folder, check=True)
    return str(folder / "program")


@pytest.mark.parametrize("language", ["python", pytest.param("c", marks=needs_gcc)])
def test_a_program_asks_and_gets_or_releases_cpus(table: NodeTable, tmp_path: Path, language: str) -> None:
    """Jobs that wait for CPUs, and CPUs that become idle, change the CPUs of a program at its next check."""
    command = [sys.executable, "-c", PROGRAM] if language == "python" else [compiled(tmp_path, PROGRAM_IN_C)]
    administrator = Administrator(table)
    cpus = NodeCpus(administrator)
    with ResourceManager(cpus) as manager:
        _, variables = administrator.prepare(os.getpid(), range(4))
        environment = {**os.environ, **variables, **manager.variables}
        with Answering(command, environment) as program:

            def check() -> list[int]:
                return [int(word) for word in program.ask().split()]

            assert program.heard() == "0 0 1 2 3"
            assert check() == [1, 0, 1, 2, 3, 4, 5]  # four CPUs were idle: up to the largest size
            assert check() == [0, 0, 1, 2, 3, 4, 5]
            cpus.waiting = [4]
            assert check() == [1, 0, 1, 2, 3]  # down to the preferred size: 4 CPUs are idle
            assert check() == [0, 0, 1, 2, 3]  # the job can start: no expansion onto its CPUs
            assert administrator.free() == (4, 5, 6, 7)
            cpus.waiting = [6]
            assert check() == [1, 0, 1]
            assert check() == [0, 0, 1]
            cpus.waiting = []
            assert check() == [1, 0, 1, 2, 3, 4, 5]
            program.end()


def test_a_program_without_its_resource_manager_keeps_its_cpus(
    table: NodeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    administrator = Administrator(table)
    with ResourceManager(NodeCpus(administrator)) as manager:
        _, variables = administrator.prepare(os.getpid(), range(2))
    for name, value in {**variables, **manager.variables}.items():
        monkeypatch.setenv(name, value)
    with malleable.attach(pin=False) as m:
        with pytest.warns(UserWarning, match="does not answer a check"):
            assert not m.check(1, 8, 4)
        assert m.cpus == (0, 1)


def test_an_invalid_request_has_an_answer_and_the_next_one_too(tmp_path: Path) -> None:
    def decide(pid: int, size: int, sizes: SizeRange) -> Answer:
        assert pid == os.getpid()
        return check_status(size, sizes, 1, [])

    with ResourceManager(decide) as manager:
        (path,) = manager.variables.values()
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            answers = link.makefile("rb")
            for request in (b"[]", b"{}", b"{", b'{"size":0,"least":1,"preferred":1,"most":2}'):
                link.sendall(request + b"\n")
                assert list(decode(answers.readline())) == ["error"], request
            answers.close()
        assert request_decision(path, 1, SizeRange(1, 1, 2)) == Answer(Action.EXPAND, 2)
        assert oct(Path(path).parent.stat().st_mode & 0o777) == "0o700"
    assert not Path(path).parent.exists()
    with pytest.raises(TestbedError, match="does not answer"):
        request_decision(str(tmp_path / "missing"), 1, PAPER)


def test_the_folder_of_a_resource_manager_can_be_lost(table: NodeTable) -> None:
    with ResourceManager(NodeCpus(Administrator(table))) as manager:
        (path,) = manager.variables.values()
        shutil.rmtree(Path(path).parent)
        with pytest.raises(TestbedError, match="does not answer"):
            request_decision(path, 1, PAPER)


@needs_gcc
def test_a_program_in_c_gets_the_action_and_the_size_of_each_check(tmp_path: Path) -> None:
    """The manager answers with the preferred size. Without it, or with invalid sizes, the program keeps its size."""
    program = compiled(tmp_path, SIZES_IN_C)

    def wanted(pid: int, size: int, sizes: SizeRange) -> Answer:
        return Answer.between(size, sizes.preferred)

    def run(*arguments: str, **variables: str) -> tuple[list[str], str]:
        done = subprocess.run([program, *arguments], env=variables, capture_output=True, text=True, check=True)
        return done.stdout.splitlines(), done.stderr

    with ResourceManager(wanted) as manager:
        assert run("2", "4", "4", "1", "9", **manager.variables) == (["1 4", "0 4", "2 1", "1 9"], "")
        printed, errors = run("2", "10", "3", **manager.variables)  # at most 9
        assert printed == ["0 2", "1 3"]
        assert "does not answer the check" in errors and "the sizes 1, 10, 9 are invalid" in errors
    assert run("2", "4") == (["0 2"], "")
    printed, errors = run("2", "4", **manager.variables)  # the manager has ended
    assert (printed, errors.endswith(": No such file or directory\n")) == (["0 2"], True), errors
    long = "x" * 200
    assert run("2", "4", TRACEBED_DMR=long) == (
        ["0 2"],
        f'tracebed: the resource manager {long} does not answer the check {{"size":2,"least":1,"preferred":4,"most":9}}'
        ": File name too long\n",
    )


@needs_mpi
@needs_gcc
def test_a_program_of_mpi_in_c_gets_a_communicator_and_its_data(tmp_path: Path) -> None:
    """Each process has 7, which a new one gets from an old one: a sum of 7 a process shows that no datum is lost."""
    program = compiled(tmp_path, RING_IN_C, compiler())
    plan = iter([2, 2, 4, 3, 1])

    def planned(pid: int, size: int, sizes: SizeRange) -> Answer:
        assert sizes == SizeRange(1, 2, 4)
        return Answer.between(size, next(plan))

    with ResourceManager(planned) as manager:
        environment = {**os.environ, **LOOPBACK, **ROOT, **manager.variables}
        printed = run_until([*mpiexec(), program, "5"], environment, tmp_path / "output", GUARD_S)
    steps = [f"step {step}: {size} processes, sum {7 * size}" for step, size in enumerate((1, 2, 2, 4, 3))]
    actions = ["action 1 to 2, handler of 2", "action 1 to 4, handler of 4"]
    actions += ["action 2 to 3, handler of 4", "action 2 to 1, handler of 3"]
    expected = [steps[0], actions[0], *steps[1:3], actions[1], steps[3], actions[2], steps[4], actions[3]]
    assert printed.splitlines() == expected
