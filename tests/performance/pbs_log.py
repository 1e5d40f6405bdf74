"""Drawn accounting of PBS Pro and Torque, as large as wanted: for benchmarks of the reader.

python -m tests.performance.pbs_log 200000 accounting      # E records only, as most published logs have them
python -m tests.performance.pbs_log 200000 accounting all  # the other records of the jobs as well
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

T = 1_614_600_000
CORES = 32
NAMES = ("relax.sh", "STDIN", "run_md", "post-7", "cfd_case", "train")


def records(jobs: int, every_kind: bool, seed: int = 1) -> Iterator[tuple[int, str]]:
    """Yield (instant, record) of each job: an E record; with `every_kind` also Q, S, L, and some D, A and R."""
    draw = np.random.default_rng(seed)
    submit = np.cumsum(draw.exponential(40.0, jobs)).astype(int)
    wait, run = draw.exponential(1800.0, jobs).astype(int), draw.lognormal(7.0, 1.8, jobs).astype(int) + 1
    nodes = np.minimum(2 ** draw.geometric(0.5, jobs) // 2, 64)
    cores = np.where(nodes > 1, CORES, draw.integers(1, CORES + 1, jobs))
    first, user, fate = draw.integers(0, 900, jobs), draw.integers(0, 300, jobs), draw.random(jobs)
    for row, columns in enumerate(zip(submit, wait, run, nodes, cores, first, user, fate, strict=True)):
        sub, waited, ran, n, c, at, who, lot = (value.item() for value in columns)
        start, end = T + sub + waited, T + sub + waited + ran
        name = f"{1_000_000 + row}[{row % 7}].pbs01" if row % 10 == 0 else f"{1_000_000 + row}.pbs01"
        torque, limit = row % 4 == 0, (ran // 3600 + 1) * 3600 if lot > 0.05 else ran
        hosts = [f"r{(at + k) // 36:02}n{(at + k) % 36:02}" for k in range(n)]
        usual = f"user=u{who:03} group=" + ('"all users" ' if who % 50 == 0 else f"g{who % 20} ")
        times = f"ctime={T + sub} qtime={T + sub} etime={T + sub + (60 if lot > 0.9 else 0)} start={start} "
        if torque:
            part = ":gpus=1:fast" if who % 9 == 0 else ""
            placed = "+".join(f"{host}/0-{c - 1}" if c > 1 else f"{host}/0" for host in hosts)
            body = f"{usual}jobname={NAMES[row % 6]} queue=batch {times}owner=u{who:03}@login1 exec_host={placed} "
            wanted = f"Resource_List.neednodes={n}:ppn={c}{part} Resource_List.nodect={n} "
            wanted += f"Resource_List.nodes={n}:ppn={c}{part} "
        else:
            part = ":ngpus=2" if who % 9 == 0 else ""
            placed = "+".join(f"{host}/0*{c}" for host in hosts)
            vnodes = "+".join(f"({host}:ncpus={c}:mem={c * 2097152}kb)" for host in hosts)
            body = f'{usual}account="A{who % 30}" project=_pbs_project_default jobname={NAMES[row % 6]} queue=workq '
            body += times
            body += f"exec_host={placed} exec_vnode={vnodes} "
            wanted = f"Resource_List.mem={n * c * 2}gb Resource_List.ncpus={n * c} Resource_List.nodect={n} "
            wanted += f"Resource_List.place=scatter Resource_List.select={n}:ncpus={c}:mpiprocs={c}{part} "
        wanted += f"Resource_List.walltime={limit // 3600:02}:{limit // 60 % 60:02}:{limit % 60:02} "
        code = 271 if lot < 0.06 else 1 if lot < 0.12 else 0
        used = f"session={row + 17} end={end} Exit_status={code} resources_used.cpupercent={c * 97} "
        used += f"resources_used.cput={ran * c // 3600:02}:{ran // 60 % 60:02}:{ran % 60:02} "
        used += f"resources_used.mem={n * 917_512}kb "
        used += f"resources_used.ncpus={n * c} resources_used.vmem={n * 1_917_512}kb "
        used += f"resources_used.walltime={ran // 3600:02}:{ran // 60 % 60:02}:{ran % 60:02} run_count=1"
        if every_kind:
            yield T + sub, f"Q;{name};queue={'batch' if torque else 'workq'}"
            if lot < 0.01:
                yield T + sub + waited // 2, f"D;{name};requestor=u{who:03}@login1"
                continue
            yield start, f"S;{name};{body}{wanted}"
            if 0.01 <= lot < 0.02:
                yield start + ran // 2, f"R;{name};{body}{wanted}Exit_status=-1"
            elif lot < 0.03:
                yield end, f"D;{name};requestor=u{who:03}@login1"
            if row % 500 == 0:
                yield end, "L;license;floating license hour:3 day:10 max:12"
        yield end, f"E;{name};{body}{wanted}{used}"


def write(path: Path, jobs: int, every_kind: bool = False) -> int:
    """Write the accounting of `jobs` jobs in the order of time, and return the number of its records."""
    rows = sorted(records(jobs, every_kind), key=lambda record: record[0])
    stamps = [datetime.fromtimestamp(at, UTC).strftime("%m/%d/%Y %H:%M:%S") for at, _ in rows]
    path.write_text("".join(f"{stamp};{record}\n" for stamp, (_, record) in zip(stamps, rows, strict=True)))
    return len(rows)


if __name__ == "__main__":
    write(Path(sys.argv[2]), int(sys.argv[1]), sys.argv[3:] == ["all"])
