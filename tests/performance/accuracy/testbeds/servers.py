"""Start the servers of the experiments in this folder: an engine for containers, four hosts with SSH servers in network
namespaces, and a Slurm of four nodes. They need root and Debian's docker.io, debootstrap, openssh-server, iproute2,
slurmctld, slurmd and munge. The script writes the inventories, and stays until Ctrl-C.

python servers.py
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4]))  # the servers of the tests

from tests.servers import dockerd
from tests.servers.slurmd import Slurm
from tests.servers.sshd import Network


def write(name: str, what: str, group: str) -> None:
    """Write the inventory of a provider."""
    text = f"# Four emulated nodes of one core: {what}. Written by servers.py.\nname: {name}\n"
    Path(f"{name}-nodes.yaml").write_text(f"{text}groups:\n  {name}:\n    provider: {name}\n{group}", encoding="utf-8")


def main() -> None:
    """Start the servers, write the inventories, and wait for a signal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    emulated = "    cores: 1\n    emulated: true\n"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracebed-servers-")))
        address = stack.enter_context(dockerd.engine())
        network = stack.enter_context(Network(folder / "ssh", 4))
        slurm = Slurm(folder / "slurm", 4, cores=1)
        stack.callback(slurm.down)
        slurm.up()
        known = folder / "known_hosts"
        known.write_text("".join(host.known() for host in network.hosts.values()), encoding="utf-8")
        config = folder / "ssh_config"
        config.write_text("".join(host.config(name, known) for name, host in network.hosts.items()), encoding="utf-8")
        write("local", "processes of this machine", f"{emulated}    nodes: h[1-4]\n")
        write("docker", "containers", f"    daemon: {address}\n    base: {dockerd.BASE}\n{emulated}    nodes: h[1-4]\n")
        keys = f"    config: {config}\n    known_hosts: {known}\n    listen: true\n"
        write("ssh", "hosts in network namespaces, by SSH", f"{keys}{emulated}    nodes: h[1-4]\n")
        keys = "    options: [--exclusive]\n    listen: true\n"
        write("slurm", "an allocation of Slurm", f"{keys}{emulated}    nodes: h[1-4]\n")
        dockerd.stay(f"export SLURM_CONF={slurm.conf}")


if __name__ == "__main__":
    main()
