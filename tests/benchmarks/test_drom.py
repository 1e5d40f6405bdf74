"""Who owns which CPUs of a node: the calls of DROM, with real processes, and the rules beside an obvious model."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answering import Answering
from tracebed.benchmarks import node_table, ownership
from tracebed.benchmarks.drom import TABLE, VARIABLE, Administrator, DromProcess
from tracebed.benchmarks.node_table import NodeTable, TableLostError, Transaction, bits, cpus_of
from tracebed.benchmarks.ownership import DromResult, Flags
from tracebed.ground.errors import TestbedError

CPUS = range(8)
PROGRAM = """
import sys
from pathlib import Path
from tracebed.benchmarks.drom import DromProcess
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.ownership import Flags
cpus = eval(sys.argv[2])
application = DromProcess(NodeTable(Path(sys.argv[1])), cpus)
result = application.register()
print(result.name, application.cpus, flush=True)
for line in sys.stdin:
    print(*eval(line), flush=True)
"""


class Process(Answering):
    """A process with an application, which carries out one call after the other."""

    def __init__(self, table: NodeTable, cpus: object = None, **environment: str) -> None:
        super().__init__([sys.executable, "-c", PROGRAM, str(table.path), repr(cpus)], {**os.environ, **environment})
        self.answer = self.heard()

    def poll(self) -> str:
        """Poll, and return the result and the CPUs."""
        return self.ask("(r := application.poll())[0].name, r[1]")

    def finalize(self, flags: str = "") -> str:
        return self.ask(f"(application.finalize({flags}).name,)")


Pair = tuple[Process, Process]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[NodeTable]:
    found = NodeTable.create(tmp_path / "node", CPUS)
    yield found
    found.close()


@pytest.fixture
def admin(table: NodeTable) -> Administrator:
    return Administrator(table, sync_s=0.3)


@pytest.fixture
def pair(table: NodeTable) -> Iterator[Pair]:
    """Two processes with CPUs 0 to 3 and 4 to 7."""
    with Process(table, range(4)) as first, Process(table, range(4, 8)) as second:
        assert first.answer == "SUCCESS (0, 1, 2, 3)"
        yield first, second


def test_a_change_is_noted_and_applied_by_the_next_poll(admin: Administrator, pair: Pair) -> None:
    first, second = pair
    assert admin.cpus() == (*CPUS,)
    assert admin.pids() == [first.pid, second.pid]
    assert first.poll() == "NO_UPDATE (0, 1, 2, 3)"
    assert admin.set_mask(first.pid, [0]) is DromResult.NOTED
    assert admin.mask(first.pid) == (DromResult.NOTED, (0, 1, 2, 3))
    assert first.poll() == "SUCCESS (0,)"
    assert first.poll() == "NO_UPDATE (0,)"
    assert admin.mask(first.pid) == (DromResult.SUCCESS, (0,))
    assert admin.free() == (1, 2, 3)


def test_a_second_change_before_the_first_was_polled_is_refused(admin: Administrator, pair: Pair) -> None:
    first, _ = pair
    assert admin.set_mask(first.pid, [0]) is DromResult.NOTED
    assert admin.set_mask(first.pid, [1]) is DromResult.PENDING
    assert first.poll() == "SUCCESS (0,)"


def test_an_unknown_process_has_no_mask(admin: Administrator) -> None:
    assert admin.set_mask(os.getpid(), [0]) is DromResult.NO_PROCESS
    assert admin.mask(os.getpid()) == (DromResult.NO_PROCESS, ())
    assert admin.finalize(os.getpid()) is DromResult.NO_PROCESS


def test_cpus_of_another_process_need_the_flag_steal(admin: Administrator, pair: Pair) -> None:
    first, second = pair
    assert admin.set_mask(first.pid, range(6)) is DromResult.PERMISSION
    assert admin.set_mask(first.pid, range(6), Flags.STEAL) is DromResult.NOTED
    assert first.poll() == "NO_UPDATE (0, 1, 2, 3)"  # the holder has not released them
    assert second.poll() == "SUCCESS (6, 7)"
    assert first.poll() == "SUCCESS (0, 1, 2, 3, 4, 5)"


def test_a_cpu_that_the_node_lacks_is_refused(admin: Administrator, pair: Pair) -> None:
    assert admin.set_mask(pair[0].pid, [0, 8], Flags.STEAL) is DromResult.PERMISSION


def test_nothing_is_taken_from_a_process_with_a_pending_change(admin: Administrator, pair: Pair) -> None:
    first, second = pair
    assert admin.set_mask(second.pid, range(4, 7)) is DromResult.NOTED
    assert admin.set_mask(first.pid, range(5), Flags.STEAL) is DromResult.PERMISSION
    assert second.poll() == "SUCCESS (4, 5, 6)"


@pytest.mark.parametrize("flags", [Flags.NONE, Flags.RETURN_STOLEN])
def test_all_cpus_of_a_process_may_be_taken_and_are_returned_on_request(
    admin: Administrator, pair: Pair, flags: Flags
) -> None:
    first, second = pair
    assert admin.set_mask(first.pid, CPUS, Flags.STEAL) is DromResult.NOTED
    assert second.poll() == "SUCCESS ()"
    assert first.poll() == f"SUCCESS {(*CPUS,)}"
    assert admin.finalize(first.pid, flags) is DromResult.SUCCESS
    if flags:
        assert second.poll() == "SUCCESS (4, 5, 6, 7)"
    else:
        assert second.poll() == "NO_UPDATE ()"
        assert admin.free() == (*CPUS,)


def test_cpus_return_to_the_process_that_had_them_first(admin: Administrator, pair: Pair) -> None:
    first, second = pair
    with Process(admin.table, ()) as third:
        for taker, loser in ((second, first), (third, second)):
            assert admin.set_mask(taker.pid, [0], Flags.STEAL) is DromResult.NOTED
            loser.poll()
            taker.poll()
        assert third.finalize("Flags.RETURN_STOLEN") == "SUCCESS"
        assert first.poll() == "SUCCESS (0, 1, 2, 3)"
        assert second.poll() == "NO_UPDATE ()"


def test_a_guest_inherits_the_cpus_of_an_owner_that_has_ended(admin: Administrator, pair: Pair) -> None:
    first, second = pair
    assert admin.set_mask(first.pid, CPUS, Flags.STEAL) is DromResult.NOTED
    assert second.finalize() == "SUCCESS"
    assert first.poll() == f"SUCCESS {(*CPUS,)}"
    assert first.finalize("Flags.RETURN_STOLEN") == "SUCCESS"
    assert admin.free() == (*CPUS,)


def test_a_synchronous_change_waits_for_a_process_that_polls(admin: Administrator, pair: Pair) -> None:
    first, second = pair
    admin.sync_s = 30.0
    second.tell("[application.poll() for i in range(10**5) if not __import__('time').sleep(1e-3)][:1]")
    assert admin.set_mask(second.pid, [4], Flags.SYNC) is DromResult.SUCCESS
    assert admin.mask(second.pid) == (DromResult.SUCCESS, (4,))
    assert admin.set_mask(first.pid, [0, 5], Flags.NONE) is DromResult.NOTED
    admin.sync_s = 0.1
    assert admin.mask(first.pid, Flags.SYNC) == (DromResult.TIMEOUT, (0, 1, 2, 3))


def test_a_synchronous_change_that_is_not_polled_is_withdrawn(admin: Administrator, pair: Pair) -> None:
    first, second = pair
    assert admin.set_mask(first.pid, range(6), Flags.STEAL | Flags.SYNC) is DromResult.TIMEOUT
    assert [admin.mask(process.pid)[0] for process in pair] == [DromResult.SUCCESS] * 2
    assert first.poll() == "NO_UPDATE (0, 1, 2, 3)"
    assert second.poll() == "NO_UPDATE (4, 5, 6, 7)"


def test_a_synchronous_reservation_that_is_not_polled_is_withdrawn(admin: Administrator, pair: Pair) -> None:
    assert admin.prepare(os.getpid(), [0], Flags.STEAL | Flags.SYNC) == (DromResult.TIMEOUT, {})
    assert pair[0].poll() == "NO_UPDATE (0, 1, 2, 3)"
    assert admin.mask(os.getpid())[0] is DromResult.NO_PROCESS


def test_the_own_mask_is_set_at_once(table: NodeTable, admin: Administrator) -> None:
    with DromProcess(table, [0, 1]) as application:
        assert admin.set_mask(os.getpid(), [1, 2]) is DromResult.SUCCESS
        assert admin.mask(os.getpid()) == (DromResult.SUCCESS, (1, 2))
        assert application.poll() == (DromResult.SUCCESS, (1, 2))
        assert application.poll() == (DromResult.NO_UPDATE, (1, 2))


def test_children_inherit_prepared_cpus_piece_by_piece(table: NodeTable, admin: Administrator) -> None:
    result, variables = admin.prepare(os.getpid(), range(4))
    assert (result, variables) == (DromResult.SUCCESS, {TABLE: str(table.path), VARIABLE: str(os.getpid())})
    assert admin.prepare(os.getpid(), [5])[0] is DromResult.REGISTERED
    with contextlib.ExitStack() as stack:
        answers = []
        for cpus in ([0, 1], [1], [2, 4], None):
            child = stack.enter_context(Process(table, cpus, **variables))
            answers.append(child.answer)
        assert answers == ["SUCCESS (0, 1)", "PERMISSION ()", "PERMISSION ()", "SUCCESS (2, 3)"]
        assert admin.mask(os.getpid())[0] is DromResult.NO_PROCESS  # nothing is left of the reservation


def test_a_prepared_process_takes_its_cpus_once_their_holder_has_polled(
    table: NodeTable, admin: Administrator, pair: Pair
) -> None:
    result, variables = admin.prepare(os.getpid(), [0, 1], Flags.STEAL)
    assert result is DromResult.NOTED
    with Process(table, None, **variables) as child:
        assert child.answer == "NOTED ()"
        assert pair[0].poll() == "SUCCESS (2, 3)"
        assert child.poll() == "SUCCESS (0, 1)"


def test_finalizing_twice_is_an_error_that_harms_nothing(admin: Administrator, pair: Pair) -> None:
    first, second = pair
    assert [first.finalize(), first.finalize(), first.poll()] == ["SUCCESS", "NO_PROCESS", "NO_PROCESS ()"]
    assert admin.finalize(first.pid) is DromResult.NO_PROCESS
    assert admin.mask(second.pid) == (DromResult.SUCCESS, (4, 5, 6, 7))


def test_registering_twice_is_an_error(table: NodeTable) -> None:
    with DromProcess(table, [0]):
        assert DromProcess(table, [1]).register() is DromResult.REGISTERED
        with pytest.raises(TestbedError, match="REGISTERED"), DromProcess(table, [1]):
            pass
    with pytest.raises(TestbedError, match="PERMISSION"), DromProcess(table, [8]):
        pass


def test_cpus_of_a_process_that_was_killed_return_to_their_owner(admin: Administrator, pair: Pair) -> None:
    first, second = pair
    assert admin.set_mask(first.pid, CPUS, Flags.STEAL) is DromResult.NOTED
    second.poll()
    first.kill()
    assert admin.pids() == [second.pid]
    assert second.poll() == "SUCCESS (4, 5, 6, 7)"
    assert admin.free() == (0, 1, 2, 3)


# The table: its lock, a process that dies, damage.


def test_a_dead_lock_holder_blocks_nobody_and_changes_nothing(table: NodeTable, admin: Administrator) -> None:
    with DromProcess(table, [0, 1]):
        child = os.fork()
        if not child:  # dies in the middle of a transaction, with the other bank half written
            with NodeTable(table.path).transaction() as found:
                found.entries.clear()
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        assert admin.mask(os.getpid()) == (DromResult.SUCCESS, (0, 1))


def test_a_lock_that_is_held_for_too_long_is_an_error(
    table: NodeTable, admin: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_table, "LOCK_S", 0.05)
    program = (
        "import sys; from tracebed.benchmarks.node_table import *\nwith NodeTable(Path(sys.argv[1])).transaction():"
    )
    holder = Answering([sys.executable, "-c", f"{program}\n    print(flush=True); input()", str(table.path)])
    holder.heard()
    assert admin.set_mask(os.getpid(), [0]) is DromResult.NO_TABLE
    with pytest.raises(TableLostError, match="is locked"):
        admin.cpus()
    holder.kill()
    assert admin.cpus() == (*CPUS,)


def test_a_removed_table_is_an_error_for_all(table: NodeTable, admin: Administrator) -> None:
    with DromProcess(table, [0]) as application:
        admin.set_mask(os.getpid(), [1])
        table.path.unlink()
        assert admin.set_mask(os.getpid(), [0]) is DromResult.NO_TABLE
        assert admin.mask(os.getpid()) == (DromResult.NO_TABLE, ())
        assert application.poll() == (DromResult.NO_TABLE, (0,))
        with pytest.raises(TableLostError, match="was removed"):
            admin.pids()
        with pytest.raises(TableLostError, match="cannot be opened"):
            NodeTable(table.path)
    other = NodeTable.create(table.path, CPUS)
    assert Administrator(other).pids() == []
    other.close()


@pytest.mark.parametrize("size", [0, 20, 5000])
def test_a_table_that_is_truncated_while_it_is_in_use_is_an_error_for_all(
    table: NodeTable, admin: Administrator, size: int
) -> None:
    """An access to the map beyond the end of the file would kill the process by SIGBUS."""
    with DromProcess(table, [0]) as application:
        os.truncate(table.path, size)
        assert application.poll() == (DromResult.NO_TABLE, (0,))
        assert admin.set_mask(os.getpid(), [1]) is DromResult.NO_TABLE
        with pytest.raises(TableLostError, match="is damaged"):
            admin.pids()


@given(place=st.integers(0, 83), flip=st.integers(1, 255))
def test_a_damaged_table_is_an_error_or_is_unchanged(
    place: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    table, copy = NodeTable.create(folder / "node", CPUS), folder / "copy"
    with DromProcess(table, [0, 1]):
        content = bytearray(table.path.read_bytes())
    posts = node_table.SLOTS * 8
    content[place if place < 24 else place + posts] ^= flip  # the header, and the beginning of the first bank
    copy.write_bytes(content)
    with contextlib.suppress(TableLostError):
        damaged = NodeTable(copy)
        found = Administrator(damaged).mask(os.getpid())
        # If the number of the bank is damaged, the entries are those before the last transaction.
        assert found in [(DromResult.SUCCESS, (0, 1)), (DromResult.NO_PROCESS, ()), (DromResult.NO_TABLE, ())]
        damaged.close()
    table.close()


@pytest.mark.parametrize("size", [0, 20, 5000])
def test_a_table_that_was_cut_off_is_refused(table: NodeTable, tmp_path: Path, size: int) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(table.path.read_bytes()[:size])
    with pytest.raises(TableLostError, match="is damaged"):
        NodeTable(copy)


def test_a_link_to_another_file_is_refused(table: NodeTable, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(table.path)
    with pytest.raises(TableLostError, match="cannot be opened"):
        NodeTable(tmp_path / "link")


# The rules beside an obvious model, CPU by CPU.


class Model:
    """The holder of each CPU, its next holder, and its owner."""

    def __init__(self) -> None:
        self.holder: dict[int, int] = {}
        self.target: dict[int, int] = {}
        self.owner: dict[int, int] = {}
        self.pids: set[int] = set()

    def pending(self, pid: int) -> bool:
        return any((self.holder.get(cpu) == pid) != (self.target.get(cpu) == pid) for cpu in CPUS)

    def assign(self, pid: int, wanted: set[int], steal: bool) -> bool:
        holders = {table[cpu] for table in (self.holder, self.target) for cpu in wanted if cpu in table} - {pid}
        if self.pending(pid) or (holders and not steal) or any(map(self.pending, holders)):
            return False
        for cpu in CPUS:
            if cpu in wanted:
                loser = self.target.get(cpu, pid)
                if loser != pid:
                    self.owner.setdefault(cpu, loser)
                if self.owner.get(cpu) == pid:
                    del self.owner[cpu]
                self.target[cpu] = pid
            elif self.target.get(cpu) == pid:
                del self.target[cpu]
        return True

    def poll(self, pid: int) -> None:
        for cpu in CPUS:
            if self.holder.get(cpu) == pid != self.target.get(cpu):
                del self.holder[cpu]
            if self.target.get(cpu) == pid and cpu not in self.holder:
                self.holder[cpu] = pid

    def end(self, pid: int, returning: bool) -> None:
        self.pids.remove(pid)
        for cpu in CPUS:
            if self.holder.get(cpu) == pid:
                del self.holder[cpu]
            if self.owner.get(cpu) == pid:
                del self.owner[cpu]
            if self.target.get(cpu) == pid:
                del self.target[cpu]
                owner = self.owner.pop(cpu, None)
                if returning and owner is not None:
                    self.target[cpu] = owner


ACTIONS = st.one_of(
    st.tuples(st.just("assign"), st.integers(1, 4), st.sets(st.sampled_from(CPUS)), st.booleans()),
    st.tuples(st.just("poll"), st.integers(1, 4), st.just(set()), st.just(False)),
    st.tuples(st.just("end"), st.integers(1, 4), st.just(set()), st.booleans()),
)


@settings(max_examples=100)
@given(st.lists(ACTIONS, max_size=40))
def test_the_rules_are_those_of_the_model(actions: list[tuple[str, int, set[int], bool]]) -> None:
    """Whatever happens, a CPU has one holder, and after polls of all processes nothing is pending."""
    found, model = Transaction(bits(CPUS), {}), Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_table, "start_of", lambda pid: 1)
        for kind, pid, cpus, flag in actions:
            if pid not in model.pids:
                found.add(pid, registered=True)
                model.pids.add(pid)
            entry = found.entries[pid]
            found.posted.clear()
            before = {entry.pid: entry.pending for entry in found.entries.values()}
            if kind == "assign":
                result = ownership.assign(found, entry, bits(cpus), Flags.STEAL if flag else Flags.NONE)
                assert result.error != model.assign(pid, cpus, flag)
            elif kind == "poll":
                ownership.take(found, entry)
                model.poll(pid)
            else:
                ownership.release(found, entry, Flags.RETURN_STOLEN if flag else Flags.NONE)
                model.end(pid, flag)
            for other in found.entries.values():
                assert cpus_of(other.held) == tuple(cpu for cpu in CPUS if model.holder.get(cpu) == other.pid)
                assert cpus_of(other.target) == tuple(cpu for cpu in CPUS if model.target.get(cpu) == other.pid)
                assert cpus_of(other.taken) == tuple(cpu for cpu in CPUS if model.owner.get(cpu) == other.pid)
                if other.pending and not before.get(other.pid, False):
                    assert other.slot in found.posted
    for _ in range(2):
        for entry in found.entries.values():
            ownership.take(found, entry)
    assert not any(entry.pending for entry in found.entries.values())
