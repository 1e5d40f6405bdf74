"""Outputs of other batch systems that no format reads, recognized to say what to do with them."""

from __future__ import annotations

import re

from tracebed.converters.formats.tools.files import Input

PATTERNS = {
    rb'"?JOB_(?:FINISH|NEW|START)2?"? ': "the accounting of LSF (lsb.acct)",
    rb"JOBID\W+USER\W+STAT\W+QUEUE\W": "the output of LSF's bjobs",
    rb"(?:#[^\n]*\n)*[^\s:,;|]+:[^\s:,;|]+:(?:[^:\n]*:){25,}": "the accounting of Grid Engine",
    rb"=+\s*\nqname\s": "the output of Grid Engine's qacct",
    rb"job-ID\s+prior\s+name\s": "the output of Grid Engine's qstat",
    rb"JOBID\s+(?:QUEUE\s+)?USER\s+NAME\s+ST\s+NTASKS\s": "the output of flux jobs",
    rb'\{[^\n]*"t_(?:submit|run|inactive)"': "a file of Flux with jobs in JSON",
    rb'\{\s*"apiVersion"|apiVersion:': "a file of Kubernetes objects",
    rb"(?:NAMESPACE\s+)?NAME\s+(?:STATUS\s+)?COMPLETIONS\s+DURATION\s": "the output of kubectl get jobs",
    rb"(?:NAMESPACE\s+)?NAME\s+READY\s+STATUS\s+RESTARTS\s": "the output of kubectl get pods",
    rb"Job [Ii][Dd]\s+(?:Name|Username)\s": "the output of PBS's qstat",
    rb"JOBID\s+PARTITION\s+NAME\s+USER\s": "the output of Slurm's squeue",
}
"""Pattern of the first bytes of a file, after white space -> what the file is."""
FOREIGN = [(re.compile(rb"\s*(?:" + pattern + rb")"), what) for pattern, what in PATTERNS.items()]
AS_TABLE = (
    "write a table with a header and a row for each job, and read it with `tracebed import FILE --as real --columns "
    "submit=NAME,start=NAME,end=NAME,nodes=NAME`; `tracebed export RUN --to workload` makes a workload of it"
)


def kind_of(file: Input) -> str | None:
    """Return what a file of another batch system is, or None."""
    return next((what for pattern, what in FOREIGN if pattern.match(file.head)), None)
