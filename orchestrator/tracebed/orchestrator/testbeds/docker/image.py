"""The image of the containers that are nodes: built once for each content, without network."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.docker.engine import Engine
from tracebed.orchestrator.testbeds.wheelhouse import wheel

if TYPE_CHECKING:
    from docker.models.images import Image

DOCKERFILE = Path(__file__).with_name("Dockerfile")
BASE = "python:3-slim"
"""The public base image of containers, unless the inventory sets another one."""
NAME = "tracebed-node"
LABEL = "tracebed.image"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architecture as Podman names it -> as Python names it."""


def node_image(engine: Engine, base: str, on_step: Callable[[str], None]) -> str:
    """Return the ID of the image of the nodes. Build the image if the engine lacks it.

    Args:
        base: an image with Python 3.11 or newer, as `python3`.
        on_step: function that reports a step of a long operation to the user.

    Raises:
        TestbedError: the base image is missing and cannot be pulled, or the build fails.
    """
    import docker.errors

    with engine.errors("the facts of the container engine cannot be read"):
        machine = engine.client.info()["Architecture"]
    with tempfile.TemporaryDirectory(prefix="tracebed-") as folder:
        archive = wheel(Path(folder), f"linux-{MACHINES.get(machine, machine)}")
        files = {"Dockerfile": DOCKERFILE.read_bytes(), archive.name: archive.read_bytes()}
    base_id = _base(engine, base, on_step).id or ""
    digest = hashlib.sha256(base_id.encode())
    for name, content in files.items():
        digest.update(f"{name}:{len(content)}:".encode() + content)
    tag = f"{NAME}:{digest.hexdigest()[:16]}"
    with engine.errors(f"the image {tag} cannot be read"):
        try:
            return _named(engine.client.images.get(tag))
        except docker.errors.ImageNotFound:
            pass
    on_step(f"building the image {tag} from {base}")
    try:
        with engine.errors(f"the image {tag} cannot be built"):
            image, _ = engine.client.images.build(
                fileobj=_context(files),
                custom_context=True,
                tag=tag,
                buildargs={"BASE": base_id},
                network_mode="none",
                rm=True,
                forcerm=True,
            )
    except TestbedError as error:
        raise TestbedError(
            error.what,
            where=engine.where,
            hint=f"the base {base} needs Python 3.11 or newer, as python3",
            transient=error.transient,
        ) from error
    with engine.errors(f"the image {tag} cannot be tagged"):
        return _named(image)


def _named(image: Image) -> str:
    """Tag an image of nodes with the name that existing containers use, and return its ID."""
    if f"{NAME}:latest" not in image.tags:
        image.tag(NAME, "latest")
    return str(image.id)


def _base(engine: Engine, base: str, on_step: Callable[[str], None]) -> Image:
    """Return the base image. Pull it unless the engine has it."""
    import docker.errors

    with engine.errors(
        f"the image {base} is not on the engine and cannot be pulled",
        hint="set `base:` to an image with Python 3.11 or newer that the engine has (docker images)",
    ):
        try:
            return engine.client.images.get(base)
        except docker.errors.ImageNotFound:
            on_step(f"pulling the image {base}")
            return engine.client.images.pull(base, tag=None if ":" in base.rpartition("/")[2] else "latest")


def _context(files: dict[str, bytes]) -> io.BytesIO:
    """Return a build context with `files` as a tar archive. Equal files give equal bytes."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    data.seek(0)
    return data
