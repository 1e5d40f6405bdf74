"""A real Slurm in a folder of its own: munged, slurmctld, slurmd for each node, and accounting if wanted.

All servers listen on free ports of the loopback and are ended by their process ids. As a script, it starts a cluster,
prints the line to export, and stays until Ctrl-C:

    python -m tests.servers.slurmd FOLDER --nodes 8 [--accounting] [--set SchedulerParameters=bf_interval=1]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import psutil

from tests.patience import GUARD_S
from tests.servers.ports import free_ports

SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PROGRAMS = (
    *("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"),
    *("sacct", "sacctmgr"),
)
ACCOUNTING_PROGRAMS = ("mariadbd", "mariadb-install-db", "slurmdbd")
SETTINGS = {
    "ClusterName": "trial",
    "SlurmctldHost": "{host}(127.0.0.1)",
    "SlurmctldPort": "{controller}",
    "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny",
    "AuthType": "auth/munge",
    "AuthInfo": "socket={folder}/munge/socket",
    "CredType": "cred/munge",
    "SlurmUser": "root",
    "SlurmdUser": "root",
    "StateSaveLocation": "{folder}/state",
    "SlurmdSpoolDir": "{folder}/spool/%n",
    "SlurmctldPidFile": "{folder}/slurmctld.pid",
    "SlurmdPidFile": "{folder}/slurmd-%n.pid",
    "SlurmctldLogFile": "{folder}/slurmctld.log",
    "SlurmdLogFile": "{folder}/slurmd-%n.log",
    "SlurmdParameters": "config_overrides",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "MpiDefault": "none",
    "SelectType": "select/linear",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": (
        "bf_interval=1,bf_resolution=1,bf_max_job_test=1000,sched_min_interval=0,batch_sched_delay=0"
    ),
    "ReturnToService": "2",
    "KillWait": "1",
    "MinJobAge": "3600",
}
ACCOUNTING_SETTINGS = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": "127.0.0.1",
    "AccountingStoragePort": "{accounting}",
    "AccountingStoragePass": "{folder}/munge/socket",
    "AccountingStoreFlags": "job_comment",
    "JobAcctGatherType": "jobacct_gather/none",
}
# One line: Slurm chooses from the nodes of several lines line by line, not the best fit of all nodes.
NODES = (
    "NodeName=n[1-{count}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports}]"
    " CPUs={cores} RealMemory=1000 State=UNKNOWN\n"
)
PARTITION = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 State=UP\n"
DATABASE = """AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={accounting}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_accounting
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""


def reason_to_skip(accounting: bool = False) -> str | None:
    """Return why no Slurm can be started on this machine, or None."""
    needed = (*PROGRAMS, *(ACCOUNTING_PROGRAMS if accounting else ()))
    if missing := [name for name in needed if shutil.which(name, path=SEARCHED) is None]:
        packages = "slurmctld slurmd slurm-client munge" + (" slurmdbd mariadb-server" if accounting else "")
        return f"no {', '.join(missing)}: apt-get install {packages}"
    return None if os.geteuid() == 0 else "several slurmd on one host need root"


@cache
def release() -> float:
    """Return the release of Slurm that this machine has, such as 22.05; 0: it has none."""
    program = shutil.which("slurmctld", path=SEARCHED)
    if program is None:
        return 0.0
    shown = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
    return float(".".join(shown.split()[1].split(".")[:2]))


def exclusive() -> str:
    """Return the setting of a partition whose jobs have whole nodes."""
    return "Exclusive=NODE" if release() >= 26.05 else "OverSubscribe=EXCLUSIVE"


def settings_of(lines: str) -> dict[str, str]:
    """Return the keys and values of lines of slurm.conf."""
    return dict(line.split("=", 1) for line in lines.splitlines())


def make_users(names: Iterable[str]) -> None:
    """Add users to this machine. Those that exist stay."""
    for name in names:
        subprocess.run(["useradd", "-M", name], check=False, capture_output=True)


class Slurm:
    """A Slurm cluster in a folder. A call runs a command of Slurm in its environment and returns the output."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 8,
        *,
        cores: int = 2,
        accounting: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Describe a cluster. `settings` replaces or adds keys of slurm.conf."""
        self.folder = folder.resolve()
        self.nodes, self.cores, self.accounting = nodes, cores, accounting
        self.settings = SETTINGS | (ACCOUNTING_SETTINGS if accounting else {}) | dict(settings or {})
        self.conf = self.folder / "slurm.conf"
        self.servers: list[subprocess.Popen[bytes]] = []
        own = {"SLURM_CONF": str(self.conf), "MYSQL_UNIX_PORT": str(self.folder / "db.sock")}
        self.environment = {**os.environ, **own, "PATH": SEARCHED, "TZ": "UTC"}
        for name in ("SLURM_TIME_FORMAT", "SACCT_FORMAT"):
            self.environment.pop(name, None)

    def __call__(self, *command: str, check: bool = True, **environment: str) -> str:
        """Run a command until it ends; return its output."""
        done = subprocess.run(
            command,
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=GUARD_S,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a server in the background."""
        with (self.folder / f"{len(self.servers)}.out").open("wb") as output:
            server = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.servers.append(server)
        return server

    def until(self, ready: Callable[[], bool], what: str, seconds: float = GUARD_S) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not ready():
            logs = "".join(
                path.read_text(errors="replace")[-2000:]
                for pattern in ("*.log", "*.out")
                for path in self.folder.glob(pattern)
            )
            assert time.monotonic() < deadline, f"{what} after {seconds} s\n{logs}"
            time.sleep(0.2)

    @property
    def controller(self) -> subprocess.Popen[bytes]:
        """The process of slurmctld."""
        return next(server for server in self.servers if server.args[0] == "slurmctld")  # type: ignore[index]

    def up(self) -> None:
        """Start all servers, and wait until the nodes are idle."""
        folder = self.folder
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir(parents=True)
        (folder / "munge").chmod(0o755)
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._configure()
        files = [f"--{name}={folder}/munge/{file}" for name, file in (("key-file", "key"), ("socket", "socket"))]
        files += [f"--{name}-file={folder}/munge/{name}" for name in ("pid", "log", "seed")]
        self.serve("munged", "--foreground", "--force", *files)
        if self.accounting:
            self._serve_accounting()
        self.until((folder / "munge" / "socket").exists, "no munged")
        self.serve("slurmctld", "-D")
        for number in range(1, self.nodes + 1):
            self.serve("slurmd", "-D", "-N", f"n{number}")
        idle = ("sinfo", "-h", "-t", "idle", "-o", "%D")
        self.until(lambda: self(*idle, check=False).strip() == str(self.nodes), "no idle nodes")

    def _configure(self) -> None:
        accounting, controller, *ports = free_ports(2 + self.nodes)
        host = socket.gethostname().split(".")[0]
        names = {"folder": self.folder, "accounting": accounting, "controller": controller, "host": host}
        settings = "".join(f"{name}={value.format(**names)}\n" for name, value in self.settings.items())
        nodes = NODES.format(count=self.nodes, ports=",".join(map(str, ports)), cores=self.cores)
        self.conf.write_text(settings + nodes + PARTITION)
        database = self.folder / "slurmdbd.conf"
        database.write_text(DATABASE.format(**names))
        database.chmod(0o600)

    def _replace_nodes(self, lines: Sequence[str]) -> None:
        """Write other NodeName and PartitionName lines into slurm.conf, the nodes with ports of this host."""
        ports = iter(free_ports(self.nodes))
        kept = [line for line in self.conf.read_text().splitlines() if not re.match("NodeName=|PartitionName=", line)]
        for line in lines:
            if name := re.match(r"NodeName=n(?:\[(\d)-(\d)\]|\d)", line):
                count = int(name[2]) - int(name[1]) + 1 if name[1] else 1
                listed = ",".join(str(next(ports)) for _ in range(count))
                where = f"NodeHostname=localhost NodeAddr=127.0.0.1 Port={listed if count == 1 else f'[{listed}]'}"
                line = f"{line} {where}"
            kept.append(line)
        self.conf.write_text("\n".join(kept) + "\n")

    def _serve_accounting(self) -> None:
        folder = self.folder
        database = ("--no-defaults", f"--datadir={folder}/db", "--user=root")
        # Tables of two installations in one second have the same names, so each has its own folder for them.
        options = (*database, "--skip-test-db", "--auth-root-authentication-method=normal")
        self("mariadb-install-db", *options, TMPDIR=str(folder))
        self.serve(
            "mariadbd", *database, "--skip-networking", f"--socket={folder}/db.sock", f"--pid-file={folder}/db.pid"
        )
        self.until((folder / "db.sock").exists, "no database")
        self.serve("slurmdbd", "-D")
        self.until(self._accounts, "no accounting")

    def _accounts(self) -> bool:
        with contextlib.suppress(AssertionError):
            self("sacctmgr", "-i", "add", "cluster", self.settings["ClusterName"])
        return self.settings["ClusterName"] in self(
            "sacctmgr", "-n", "-P", "list", "cluster", "format=cluster", check=False
        )

    def down(self) -> None:
        """End all servers and the remaining processes of jobs."""
        for server in reversed(self.servers):
            server.terminate()
        for server in reversed(self.servers):
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == str(self.conf):
                    process.kill()


def main() -> None:
    """Start a cluster and keep it until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the cluster; new or empty")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2, help="CPUs of each node")
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and mariadb")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="key of slurm.conf")
    given = parser.parse_args()
    if reason := reason_to_skip(given.accounting):
        raise SystemExit(reason)
    settings = dict(each.split("=", 1) for each in given.set)
    cluster = Slurm(given.folder, given.nodes, cores=given.cores, accounting=given.accounting, settings=settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            cluster.up()
            sys.stdout.write(f"export SLURM_CONF={cluster.conf}\n")
            sys.stdout.flush()
            while all(server.poll() is None for server in cluster.servers):
                time.sleep(1.0)
            raise SystemExit(f"a server of {cluster.folder} ended")
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
