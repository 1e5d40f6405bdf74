"""A malleable program over MPI, which spawns processes to expand, and ends processes to shrink.

    python -m tracebed.benchmarks.mpi --sizes 1,2,4,2 --state 8

`program.py` is the program, `launch.py` starts it under mpiexec and answers its checks. Needs the extra `mpi`.
"""
