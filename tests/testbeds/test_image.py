"""The image of a user: built without a network from the base of the tests, it computes as the files of compose say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from tests.patience import patience
from tests.servers import dockerd
from tracebed.orchestrator.testbeds.wheelhouse import wheel

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gcc", "libc6-dev", "python3-venv")
BASE = "tracebed-test-python:bookworm"
ARGUMENTS = {"FROM": BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/src/wheels"}
SOURCES = ("converters", "benchmarks", "orchestrator", "validation", "inventory")
FILES = ("pyproject.toml", "hatch_build.py", "LICENSE", "README.md", "Dockerfile", ".dockerignore", "compose.yaml")
USER = 10002


def checkout(folder: Path, wheels: Path) -> None:
    """Write what a checkout gives to the build, without what `.dockerignore` leaves out, and a folder of wheels."""
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    wheels.rename(folder / "wheels")


@dataclass
class Image:
    """The image `tracebed`, built from a folder as a checkout has it."""

    client: docker.DockerClient
    engine: str
    folder: Path
    service: dict[str, Any]
    """The service in the file for `docker compose`."""


@pytest.fixture(scope="module")
def image(container_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder, made, wheels = (tmp_path_factory.mktemp(name) for name in ("checkout", "made", "wheels"))
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--only-binary", ":all:", "--python-version", "3.11"]
    subprocess.run(
        [*pip, "-d", str(wheels), str(wheel(made)), "hatchling"], check=True, env={**os.environ, "PIP_NO_INPUT": "1"}
    )
    for path in wheels.glob("tracebed-*.whl"):
        path.unlink()  # the image builds its own
    checkout(folder, wheels)
    with closing(docker.DockerClient(container_engine, timeout=int(patience(600)))) as client:
        name, _, tag = BASE.partition(":")
        client.api.import_image(str(dockerd.base_archive(*PACKAGES)), repository=name, tag=tag)
        built, _ = client.images.build(path=str(folder), tag="tracebed", buildargs=ARGUMENTS, network_mode="none")
        service = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["tracebed"]
        yield Image(client, container_engine, folder, service)
        for each in (built.id, BASE):
            client.images.remove(each, force=True)


def use(run: Callable[..., str], folder: Path) -> None:
    """Draw, simulate and replay a workload in the image, and compare the owners of the files with the user."""
    run("generate", "cirne", "--jobs", "20", "--nodes", "4", "--seed", "1", "-o", "w.parquet")
    run("simulate", "w.parquet", "--policy", "easy", "--engine", "compiled", "-o", "sim")
    run("replay", "w.parquet", "--policy", "easy", "--inventory", "emulated-4", "--speed", "1e6", "-o", "real")
    assert "makespan" in run("metrics", "sim", "real")
    assert {(folder / name).stat().st_uid for name in ("w.parquet", "sim", "real")} == {USER}


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that any user may write, with a short path, seen by the engine."""
    with tempfile.TemporaryDirectory(prefix="tracebed-image-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_a_user_simulates_and_replays_in_the_image(image: Image, place: Path) -> None:
    service = image.service

    def run(*command: str) -> str:
        output: bytes = image.client.containers.run(
            service["image"],
            [*command],
            remove=True,
            user=f"{USER}:{USER}",
            working_dir=service["working_dir"],
            volumes=[f"{place}:{service['volumes'][0].partition(':')[2]}"],
            cap_drop=service["cap_drop"],
            security_opt=service["security_opt"],
            network_mode="none",
        )
        return output.decode()

    use(run, place)


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose: apt-get install docker-compose")
def test_the_same_by_the_file_of_compose(image: Image, place: Path) -> None:
    def compose(folder: Path, *command: str) -> str:
        done = subprocess.run(
            ["docker-compose", "-p", place.name, *command],
            cwd=folder,
            env={**os.environ, "DOCKER_HOST": image.engine},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    arguments = [word for item in ARGUMENTS.items() for word in ("--build-arg", "=".join(item))]
    compose(image.folder, "build", *arguments)
    shutil.copy(image.folder / "compose.yaml", place)
    try:
        use(lambda *command: compose(place, "run", "--rm", "-T", "-u", f"{USER}:{USER}", "tracebed", *command), place)
    finally:
        compose(place, "down")
