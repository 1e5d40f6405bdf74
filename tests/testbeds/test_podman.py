"""Podman as the engine: what `nodes check` says of one that lacks something, and Debian's way to a base image."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tracebed.api as tb
from tests.documented import ROOT
from tests.servers import dockerd, podman
from tracebed.orchestrator.testbeds import launcher

PAGE = (ROOT / "docs/testbeds/docker.md").read_text(encoding="utf-8")
HYBRID = "crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2: OCI runtime error"
RUNC = 'install runc, set `runtime = "runc"`'
INIT = "container-init binary not found on the host: stat /usr/libexec/podman/catatonit: no such file or directory"
RLIMIT = "error during container init: error setting rlimits for ready process: error setting rlimit type 7: "
RLIMIT = f"runc: runc create failed: unable to start container process: {RLIMIT}operation not permitted"
CRUN_RLIMIT = "from /usr/bin/crun creating container for [/usr/bin/python3]: setrlimit `RLIMIT_NOFILE`: Operation not"
"""Messages of Podman 4.3.1 and 5.4.2 on Debian 12 and 13."""


def inventory(folder: Path, daemon: str, image: str = f"base: {dockerd.BASE}") -> Path:
    path = folder / "boxes.yaml"
    keys = f"provider: docker, daemon: '{daemon}', {image}, nodes: [{{name: n1, cores: 1, emulated: true}}]"
    path.write_text(f"groups: {{boxes: {{{keys}}}}}\n")
    return path


def checked(nodes: Path) -> str:
    """Return why the node cannot be used. What the check made is removed."""
    try:
        (health,) = tb.nodes_check(nodes, seconds=0)
    finally:
        tb.nodes_down(nodes)
    assert health.state == "unhealthy" and health.error is not None
    return health.error


@pytest.mark.parametrize(
    ("refused", "message", "what", "mend"),
    [
        (
            "/containers/create",
            INIT,
            "has no container: its container cannot be created: ",
            "install the package catatonit",
        ),
        ("/start", HYBRID, "is not up: its container does not start: ", RUNC),
        ("/start", RLIMIT, "is not up: its container does not start: ", "set `default_ulimits = "),
        ("/build", f"error running container: {HYBRID}", "cannot be built: ", RUNC),
        ("/build", f"error running container: {CRUN_RLIMIT}", "cannot be built: ", "set `default_ulimits = "),
    ],
)
def test_what_podman_lacks_is_named_with_its_mend(
    refused: str, message: str, what: str, mend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "RETRY_S", 0.01)
    image = "base: b" if refused == "/build" else "image: i"
    with podman.stand_in(tmp_path / "s", refused, message) as daemon:
        error = checked(inventory(tmp_path, daemon, image))
    assert what in error and message in error and f"({mend}" in error


def test_containers_without_their_limits_are_named(tmp_path: Path) -> None:
    """Podman 4.3.1 and 5.4.2 without root ignore limits on cgroup v1, and inspection shows 0."""
    with podman.stand_in(tmp_path / "s", "/exec", "") as daemon:
        nodes = inventory(tmp_path, daemon, "image: i")
        with (
            pytest.warns(UserWarning, match="nodes boxes: the engine ignores the limits of its containers"),
            pytest.raises(tb.TestbedError, match="the image i cannot run an agent"),
        ):
            tb.nodes_up(nodes)


# With a real Podman.


def engine_or_skip(*programs: str, **settings: Any) -> Any:
    if reason := podman.reason_to_skip(*programs):
        pytest.skip(reason)
    return podman.engine(**settings)


@pytest.mark.slow
def test_a_replay_in_containers_of_podman(tmp_path: Path) -> None:
    with engine_or_skip("catatonit", containers=podman.WITHIN) as daemon:
        nodes = inventory(tmp_path, daemon)
        jobs = tb.scale(tb.generate("cirne", jobs=4, nodes=8, seed=3), nodes=1)
        run = tb.replay(jobs, "easy", nodes, speed=1e6)
        assert set(run.jobs["state"]) == {"completed"}
        assert [step for group in tb.nodes_down(nodes) for step in group["steps"]] == []  # the replay removed all


@pytest.mark.slow
def test_a_podman_without_an_init_is_named(tmp_path: Path) -> None:
    with engine_or_skip(containers=podman.WITHIN, service='init_path = "/absent"') as daemon:
        assert "install the package catatonit" in checked(inventory(tmp_path, daemon))


@pytest.mark.slow
def test_a_podman_that_may_not_set_its_limits_is_named(tmp_path: Path) -> None:
    with engine_or_skip("catatonit") as daemon:
        assert "set `default_ulimits = " in checked(inventory(tmp_path, daemon))


@pytest.mark.slow
def test_a_podman_whose_crun_refuses_a_hybrid_cgroup_is_named(tmp_path: Path) -> None:
    unified = Path("/sys/fs/cgroup/unified/cgroup.controllers")
    if not unified.exists() or not unified.read_text().strip():
        pytest.skip("the control groups of this machine are not hybrid")
    with engine_or_skip("catatonit", "crun", containers=podman.WITHIN, runtime="crun") as daemon:
        assert RUNC in checked(inventory(tmp_path, daemon))


# The page.


@pytest.mark.slow
@pytest.mark.parametrize("program", ["docker", "podman"])
def test_the_base_image_of_the_page_is_made_by_its_commands(
    program: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A program `debootstrap` with the packages that an earlier run of the real one has unpacked stands for it."""
    section = PAGE.partition("### Debian's way to a base image")[2].partition("\n#")[0]
    commands = re.findall(r"^    (?:sudo )?(.*)$", section, re.MULTILINE)
    make, load = commands[0], next(line for line in commands if f"| {program} import" in line)
    made = shlex.split(make)
    assert made[:-1] == dockerd.debootstrap("python3")
    shim = tmp_path / "bin" / "debootstrap"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nfor last; do :; done\nmkdir "$last" && tar -xf {dockerd.base_archive()} -C "$last"\n')
    shim.chmod(0o755)
    environment = {**os.environ, "PATH": f"{shim.parent}:{dockerd.SEARCHED}"}
    if program == "podman":
        if reason := podman.reason_to_skip("catatonit"):
            pytest.skip(reason)
        service = podman.engine(containers=podman.WITHIN)
    else:
        if shutil.which("docker") is None:
            pytest.skip("no docker: apt-get install docker.io")
        service = dockerd.engine()
    with service as daemon:
        environment["DOCKER_HOST"] = daemon
        if program == "podman":
            load = load.replace("podman", f"podman --remote --url {daemon}")
        subprocess.run(["bash", "-ec", f"{make}\n{load}"], env=environment, cwd=tmp_path, check=True)
        nodes = inventory(tmp_path, daemon, f"base: {load.split()[-1]}")
        assert [group["made"] for group in tb.nodes_up(nodes)] == [True]
        tb.nodes_down(nodes)
