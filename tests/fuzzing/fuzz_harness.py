"""Fuzzing of the command line: mutated files of every kind must give a result or one clear line.

    python -m tests.fuzzing.fuzz --count 2000 --seed 1

Each mutation runs a command in a process of its own, with bounds on time and memory. A defect is exit status 70, a
traceback, a signal, a process longer than `LONGEST_S` or `HANGING_S`,
or one with more than `MOST_MIB` of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.fuzzing.fuzz_files import Case, prepare, read
from tests.fuzzing.fuzz_mutations import mutated

LONGEST_S = 60
"""Bound of the CPU time of a process in seconds."""
HANGING_S = 300
"""Bound of its wall time. A loaded machine makes a process wait."""
MOST_MIB = 1024
ADDRESS_SPACE = 4 * 2**30
"""Bound of the address space of a process in bytes. Libraries reserve two of it without use."""
MODULES = (
    *("pandas", "pyarrow.parquet", "pyarrow.csv", "scipy.stats", "yaml", "sqlite3", "rich.console", "rich.table"),
    *("tracebed.api", "tracebed.cli.logs", "tracebed.orchestrator.replay.session"),
    *("tracebed.orchestrator.simulation.simulator", "tracebed.validation.fitting.simulators"),
)
"""Modules that are imported once, before the processes are forked."""


@dataclass(frozen=True)
class Outcome:
    """What a command did with a mutated file."""

    number: int
    kind: str
    command: str
    status: int
    seconds: float
    mib: int
    text: str

    @property
    def defect(self) -> str:
        """The defect, or the empty text."""
        if self.status in (-signal.SIGALRM, -signal.SIGXCPU):
            return f"longer than {LONGEST_S} s of CPU time or {HANGING_S} s"
        if self.status < 0:
            return f"signal {-self.status}"
        if self.status == 70 or "Traceback" in self.text:
            frames = re.findall(r'File ".*?/tracebed/(.*?)", line (\d+)', self.text)
            last = (re.findall(r"^\w[\w.]*(?:Error|Exception|Warning|Interrupt)\b.*", self.text, re.M) or ["?"])[-1]
            return f"{':'.join(frames[-1]) if frames else '?'}: {last[:150]}"
        updated = "exists and is not a baseline"  # the mutated file is the output of `--update-baseline`
        if self.status == 2 and re.search(r": exists(:| and )", self.text) and updated not in self.text:
            return "the output exists: the mutation was not tested"
        if self.mib > MOST_MIB:
            return f"more than {MOST_MIB} MiB of memory"
        if self.status not in (0, 1, 2, 3, 4):
            return f"status {self.status}"
        return "several lines of error" if self.status == 2 and _lines(self.text) > 1 else ""


def _lines(text: str) -> int:
    """Return the number of lines of the error."""
    return sum(line.startswith("tracebed: ") and not line.startswith("tracebed: warning") for line in text.splitlines())


def run(folder: Path, words: list[str], *, number: int = 0, kind: str = "") -> Outcome:
    """Run a command of tracebed in a forked process in `folder`."""
    with tempfile.TemporaryFile() as out:
        start = time.monotonic()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                _command(folder, words, out.fileno())
            os._exit(99)
        _, status, usage = os.wait4(child, 0)
        seconds = time.monotonic() - start
        out.seek(0)
        text = out.read(200_000).decode(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    return Outcome(number, kind, " ".join(words), code, seconds, usage.ru_maxrss // 1024, text)


def _command(folder: Path, words: list[str], out: int) -> None:
    """Run the command in this process, which ends."""
    from tracebed import cli

    signal.alarm(HANGING_S)
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S + 5))  # SIGKILL follows SIGXCPU
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(os.dup(out), "wb"), write_through=True) for _ in range(2))
    os.environ |= {"TRACEBED_TRACEBACK": "1", "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    sys.argv = ["tracebed", *words]
    status = 99
    try:
        if words[0] == "read":
            from tracebed.ground.errors import InputError

            try:
                read(words[1], Path(words[2]))
                status = 0
            except InputError as error:
                sys.stderr.write(f"tracebed: {error}\n")
                status = 2
        else:
            cli.main()
    except SystemExit as end:
        status = int(end.code or 0) if not isinstance(end.code, str) else 2
    except BaseException:  # noqa: BLE001 - the status tells the parent
        import traceback

        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def one(folder: Path, cases: list[Case], seed: int, number: int, keep: Path | None = None) -> Outcome:
    """Run a case on a mutated copy of its file, and restore the file and the folder."""
    rng = random.Random(f"{seed}-{number}")
    kinds = sorted({case.kind for case in cases})
    kind = kinds[number % len(kinds)]
    case = rng.choice([case for case in cases if case.kind == kind])
    path, extra = folder / case.file, None
    original = path.read_bytes()
    changed = mutated(rng, path)
    if case.file.endswith(".parquet") and "/" in case.file and rng.random() < 0.8:
        extra = path.parent / "run.json"  # without checksums, which would refuse each mutation
        sums = extra.read_bytes() if extra.exists() else None
        if sums is not None:
            extra.write_bytes(re.sub(rb'"checksums": \{[^}]*\},?', b"", sums))
    (folder / "out").mkdir(exist_ok=True)
    try:
        path.write_bytes(changed)
        found = run(folder, case.command, number=number, kind=kind)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / path.name).write_bytes(changed)
    finally:
        path.write_bytes(original)
        if extra is not None and sums is not None:
            extra.write_bytes(sums)
        shutil.rmtree(folder / "out", ignore_errors=True)
    return found


def _share(master: Path, cases: list[Case], seed: int, numbers: list[int]) -> list[Outcome]:
    """Run some of the mutations on a copy of the files."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "files"
        shutil.copytree(master, folder)
        found = []
        for number in numbers:
            found.append(one(folder, cases, seed, number))
            if found[-1].defect:
                sys.stderr.write(f"{number}: {found[-1].defect}: {found[-1].command}\n")
            for path in ("swept", "out-suite", "camp"):  # what commands continue
                if any(path in word for word in found[-1].command.split()):
                    shutil.rmtree(folder / path, ignore_errors=True)
                    shutil.copytree(master / path, folder / path)
        return found


def fuzz(
    folder: Path, count: int, seed: int, jobs: int = 2, only: str = "", numbers: list[int] | None = None
) -> list[Outcome]:
    """Return the outcomes of `count` mutations of the files in `folder`, which is filled first."""
    for module in MODULES:
        __import__(module)
    master = folder / "files"
    cases = prepare(master, lambda where, words: _prepared(run(where, words)))
    cases = [case for case in cases if case.kind.startswith(only)]
    numbers = numbers or [*range(count)]
    parts = [numbers[index :: jobs * 8] for index in range(jobs * 8)]
    with ProcessPoolExecutor(jobs) as pool:
        return [found for part in pool.map(partial(_share, master, cases, seed), parts) for found in part]


def _prepared(outcome: Outcome) -> int:
    if outcome.status not in (0, 1, 3, 4) and "--show" not in outcome.command:
        sys.stderr.write(outcome.text)
    return outcome.status


def summary(outcomes: list[Outcome]) -> str:
    """Return the table of kinds and outcomes, the peaks, and the defects."""
    names = {0: "done", 1: "inaccurate", 2: "refused", 3: "inconclusive", 4: "unhealthy"}
    lines = [f"{'kind':24}" + "".join(f"{name:>13}" for name in [*names.values(), "defect"])]
    for kind in sorted({found.kind for found in outcomes}):
        own = [found for found in outcomes if found.kind == kind]
        counts = Counter("defect" if found.defect else names[found.status] for found in own)
        lines.append(f"{kind:24}" + "".join(f"{counts[name]:13}" for name in [*names.values(), "defect"]))
    large, slow = max(outcomes, key=lambda found: found.mib), max(outcomes, key=lambda found: found.seconds)
    lines.append(f"\nmost memory: {large.mib:,} MiB (number {large.number}, {large.command})")
    lines.append(f"slowest: {slow.seconds:.1f} s (number {slow.number}, {slow.command})")
    groups: dict[str, list[Outcome]] = {}
    for found in outcomes:
        if found.defect:
            groups.setdefault(found.defect, []).append(found)
    for defect, all_of in sorted(groups.items(), key=lambda item: -len(item[1])):
        numbers = ", ".join(str(found.number) for found in all_of[:5])
        lines.append(f"{len(all_of):4} x {defect}\n       {all_of[0].command} (numbers {numbers})")
    lines.append(f"{len(outcomes):,} mutations, {sum(map(len, groups.values())):,} defects")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the harness; the exit status is 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time")
    parser.add_argument("--only", default="", help="only kinds that begin with this")
    parser.add_argument("--number", type=int, action="append", help="only this mutation; prints the output")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        found = fuzz(Path(scratch), options.count, options.seed, options.jobs, options.only, options.number)
    if options.number:
        for outcome in found:
            sys.stdout.write(f"--- {outcome.number}: {outcome.command}: {outcome.status}\n{outcome.text}\n")
    sys.stdout.write(summary(found) + "\n")
    return int(any(outcome.defect for outcome in found))
