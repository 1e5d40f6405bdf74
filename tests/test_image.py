"""The image of a user: built without a network from the base of the tests, it computes as the files of compose say."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest
import yaml

import dockerd
from patience import patience
from tracebed.orchestrator.testbeds.wheelhouse import wheel

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gcc", "libc6-dev", "python3-venv")
BASE = "tracebed-test-python:bookworm"
IGNORED = ("__pycache__", ".so")
SOURCES = ("converters", "benchmarks", "orchestrator", "validation", "inventory")


def context(wheels: Path) -> io.BytesIO:
    """Return the context of the build: the files that `.dockerignore` leaves, and a folder of wheels."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in (*SOURCES, "pyproject.toml", "hatch_build.py", "LICENSE", "README.md", "Dockerfile"):
            archive.add(ROOT / name, name, filter=lambda item: None if item.name.endswith(IGNORED) else item)
        archive.add(wheels, "wheels")
    stream.seek(0)
    return stream


@pytest.fixture(scope="module")
def image(container_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[docker.DockerClient]:
    """Build the image `tracebed`, and return a client of its engine."""
    made, wheels = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--only-binary", ":all:", "--python-version", "3.11"]
    subprocess.run(
        [*pip, "-d", str(wheels), str(wheel(made)), "hatchling"], check=True, env={**os.environ, "PIP_NO_INPUT": "1"}
    )
    for path in wheels.glob("tracebed-*.whl"):
        path.unlink()  # the image builds its own
    with closing(docker.DockerClient(container_engine, timeout=int(patience(600)))) as client:
        name, _, tag = BASE.partition(":")
        client.api.import_image(str(dockerd.base_archive(*PACKAGES)), repository=name, tag=tag)
        arguments = {"FROM": BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/src/wheels"}
        built, _ = client.images.build(
            fileobj=context(wheels), custom_context=True, tag="tracebed", buildargs=arguments, network_mode="none"
        )
        yield client
        for each in (built.id, BASE):
            client.images.remove(each, force=True)


def test_a_user_simulates_and_replays_in_the_image(image: docker.DockerClient) -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["tracebed"]
    assert service["image"] == "tracebed"
    with tempfile.TemporaryDirectory(prefix="tracebed-image-") as folder:  # short, and seen by the engine
        Path(folder).chmod(0o777)

        def run(*command: str) -> str:
            output: bytes = image.containers.run(
                service["image"],
                [*command],
                remove=True,
                user="10002:10002",
                working_dir=service["working_dir"],
                volumes=[f"{folder}:{service['volumes'][0].partition(':')[2]}"],
                cap_drop=service["cap_drop"],
                security_opt=service["security_opt"],
                network_mode="none",
            )
            return output.decode()

        run("generate", "cirne", "--jobs", "20", "--nodes", "4", "--seed", "1", "-o", "w.parquet")
        run("simulate", "w.parquet", "--policy", "easy", "--engine", "compiled", "-o", "sim")
        run("replay", "w.parquet", "--policy", "easy", "--inventory", "emulated-4", "--speed", "1e6", "-o", "real")
        assert "makespan" in run("metrics", "sim", "real")
        assert {path.stat().st_uid for path in Path(folder).iterdir()} == {10002}
