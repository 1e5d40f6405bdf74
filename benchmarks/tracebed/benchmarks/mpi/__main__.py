"""`python -m tracebed.benchmarks.mpi`: run the malleable MPI program on this machine, and print its stages."""

from __future__ import annotations

import argparse
import sys

from tracebed.benchmarks.mpi.launch import reconfigure
from tracebed.benchmarks.stages import table
from tracebed.ground.errors import TracebedError


def main() -> int:
    """Run the program with the options of the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tracebed.benchmarks.mpi", description=__doc__)
    parser.add_argument("--sizes", default="1,2,4,2", help="number of processes at the start, and after each change")
    parser.add_argument("--state", type=float, default=8.0, metavar="MIB", help="size of the state, MiB")
    parser.add_argument("--iterations", type=int, default=3, metavar="N", help="number of iterations at each size")
    options = parser.parse_args()
    try:
        sizes = [int(size) for size in options.sizes.split(",")]
    except ValueError:
        parser.error(f"--sizes: {options.sizes!r} is not a list of integers")
    try:
        result = reconfigure(sizes, options.state, iterations=options.iterations)
    except TracebedError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{result.library}\n{table(result.stages)}")
    sys.stdout.write(f"{result.iterations} iterations, checksum {result.checksum:016x}, every element right\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
