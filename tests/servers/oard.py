"""A real OAR in namespaces of its own: PostgreSQL, sshd, the server of OAR, and nodes on addresses of the loopback.

The network namespace has only a loopback. The mount namespace has copies of the files that OAR has at fixed places.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.executables import write_program
from tests.patience import GUARD_S

PROGRAMS = ("oarsub", "oarstat", "oardel", "oarnodes", "Almighty", "oar-database", "oarnodesetting", "sshd", "nsenter")
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
COMMANDS = ("oarsub", "oarstat", "oardel", "oarnodes")
NAMESPACES = """
ip link set lo up
mkdir -p etc lib log run bin
cp -a /etc/oar/. etc/
cp -a /var/lib/oar/. lib/
cp /etc/hosts hosts
for node in $(seq {nodes}); do echo "127.0.1.$node oar$node" >>hosts; done
# OAR refuses jobs of the user root. The user of the test has the number of root, and another name.
{{ echo 'tracebed:x:0:0::/tmp:/bin/bash'; cat /etc/passwd; }} >passwd
mount --bind etc /etc/oar
mount --bind lib /var/lib/oar
mount --bind log /var/log
mount --bind hosts /etc/hosts
mount --bind passwd /etc/passwd
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm # a database that is killed leaves its shared memory
mkdir -p /run/sshd /run/oar /run/postgresql
chown oar:oar log lib /run/oar
chown postgres /run/postgresql
touch ready
exec sleep infinity
"""
SERVERS = """
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin)
mkdir pg
chown postgres pg
su postgres -s /bin/sh -c "$bin/initdb -A trust -D $PWD/pg && $bin/pg_ctl -D $PWD/pg \
    -o '-c listen_addresses=127.0.0.1 -p 5432' -w -l $PWD/pg/log start"
sed -i -e 's/^DB_TYPE=.*/DB_TYPE="Pg"/' -e 's/^DB_PORT=.*/DB_PORT="5432"/' \
    -e 's/^DB_BASE_PASSWD=.*/DB_BASE_PASSWD="oar"/' \
    -e 's/^DB_BASE_PASSWD_RO=.*/DB_BASE_PASSWD_RO="oar_ro"/' -e 's/^JOB_RESOURCE_MANAGER/#&/' \
    -e 's/^PINGCHECKER/#&/' -e 's/^CPUSET_PATH/#&/' /etc/oar/oar.conf
cat settings >>/etc/oar/oar.conf
echo 'PINGCHECKER_GENERIC_COMMAND="/bin/true"' >>/etc/oar/oar.conf
oar-database --create --db-is-local
su oar -s /bin/sh -c 'mkdir -p ~/.ssh && rm -f ~/.ssh/id_rsa && ssh-keygen -q -t rsa -N "" -f ~/.ssh/id_rsa &&
    (printf "environment=\\"OAR_KEY=1\\" "; cat ~/.ssh/id_rsa.pub) >~/.ssh/authorized_keys &&
    printf "Host *\\n StrictHostKeyChecking no\\n LogLevel ERROR\\n" >~/.ssh/config'
ssh-keygen -q -t ed25519 -N '' -f hostkey
/usr/sbin/sshd -f /dev/null -p 6667 -h "$PWD/hostkey" -o StrictModes=no -o UsePAM=no -o PermitUserEnvironment=yes
su oar -s /bin/sh -c 'exec Almighty' >almighty.out 2>&1 </dev/null &
for attempt in $(seq 100); do
    oarnodes >/dev/null 2>&1 && grep -q 'Start Almighty' /var/log/oar.log && break
    sleep 0.3
done
for node in $(seq {nodes}); do
    oarnodesetting -a -h "oar$node"
    oarnodesetting -s Alive -h "oar$node"
done
"""


def reason_to_skip() -> str | None:
    """Return why no OAR can be started on this machine, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    if missing or not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        packages = "oar-server oar-server-pgsql oar-node oar-user oar-user-pgsql postgresql openssh-server"
        return f"no {', '.join(missing) or 'postgresql'}: apt-get install {packages}"
    return None if os.geteuid() == 0 else "namespaces need root"


class Oar:
    """An OAR with nodes of one resource."""

    def __init__(self, nodes: int = 4, settings: Mapping[str, str] | None = None) -> None:
        """Describe an OAR.

        Args:
            nodes: number of nodes.
            settings: keys of oar.conf; the time between two jobs on a node is 1 s by default.
        """
        self.nodes, self.settings = nodes, {"SCHEDULER_JOB_SECURITY_TIME": "1"} | dict(settings or {})
        self.folder = Path(tempfile.mkdtemp(prefix="tracebed-oar-", dir="/tmp"))
        self.folder.chmod(0o755)  # the user of the database must reach its folder
        self.commands = self.folder / "bin"
        self._namespace: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """Start all servers, and wait until the nodes can be used."""
        script = NAMESPACES.format(nodes=self.nodes)
        with (self.folder / "namespaces.out").open("wb") as output:
            self._namespace = subprocess.Popen(
                ["unshare", "--mount", "--net", "sh", "-ec", script],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + GUARD_S
        while not (self.folder / "ready").exists():
            assert time.monotonic() < deadline, (self.folder / "namespaces.out").read_text()
            time.sleep(0.1)
        for name in COMMANDS:  # as a user in the namespaces calls them
            text = f'#!/bin/sh\nexec {" ".join(self._inside)} {shutil.which(name, path=SEARCHED)} "$@"\n'
            write_program(self.commands / name, text)
        lines = (f'{key}="{value}"\n' for key, value in self.settings.items())
        (self.folder / "settings").write_text("".join(lines))
        self("sh", "-c", SERVERS.format(nodes=self.nodes), timeout=GUARD_S)

    @property
    def _inside(self) -> list[str]:
        assert self._namespace is not None
        return ["nsenter", "-t", str(self._namespace.pid), "--mount", "--net"]

    def __call__(self, *command: str, timeout: float = GUARD_S) -> str:
        """Run a command in the namespaces; return its output."""
        log = self.folder / "commands.out"
        with log.open("ab") as output:
            done = subprocess.run(
                [*self._inside, f"--wd={self.folder}", *command],
                env={**os.environ, "PATH": SEARCHED},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=timeout,
            )
        text = log.read_text(errors="replace")
        assert done.returncode == 0, text[-3000:]
        return text

    def down(self) -> None:
        """End all processes in the namespaces, and remove the folder."""
        if self._namespace is not None:
            own = Path(f"/proc/{self._namespace.pid}/ns/net").readlink()
            inside = []
            for process in psutil.process_iter():
                try:
                    if Path(f"/proc/{process.pid}/ns/net").readlink() == own:
                        inside.append(process.pid)
                except OSError:
                    continue
            for number in inside:
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._namespace.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
