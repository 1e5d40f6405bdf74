"""Build the files of a release and check them: `tox -e release`.

The source distribution, a wheel for this processor, and one for aarch64 if Debian's cross compiler is installed. The
wheels get the tag of the oldest glibc that suffices, by auditwheel. The wheel of this processor is installed in a bare
Debian without a compiler, where the compiled engine simulates a workload.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers.dockerd import base_archive

ROOT = Path(__file__).resolve().parents[1]
CROSS = "aarch64-linux-gnu-gcc"
OLDEST = "manylinux2014"
"""The tag of the wheels: glibc 2.17, that of the oldest system with a Python that tracebed can use."""
FIRST_USE = """
set -e
cd /tmp
export PYTHONPATH=/opt/tracebed PATH=/opt/tracebed/bin:$PATH
! command -v cc gcc clang
python3 /opt/tracebed/bin/tracebed generate lublin99 --jobs 200 --nodes 64 --seed 1 -o w.parquet
python3 /opt/tracebed/bin/tracebed simulate w.parquet --policy easy --engine compiled -o run
"""


def run(*command: str | Path, **environment: str) -> None:
    """Run a command at the root of the project; it must succeed."""
    subprocess.run([*map(str, command)], check=True, cwd=ROOT, env={**os.environ, **environment})


def build(folder: Path) -> list[Path]:
    """Build the source distribution and the wheels, and return them."""
    raw = folder / "raw"
    build = (sys.executable, "-m", "build", "--outdir", raw)
    run(*build, "--sdist")
    (archive,) = raw.iterdir()
    with tempfile.TemporaryDirectory() as unpacked:  # libraries are compiled in the tree from which a wheel is built
        run("tar", "-C", unpacked, "--strip-components=1", "-xf", archive)
        run(*build, "--wheel", unpacked)
        if shutil.which(CROSS) and os.uname().machine != "aarch64":
            run(*build, "--wheel", unpacked, CC=CROSS, _PYTHON_HOST_PLATFORM="linux-aarch64")
    archive.rename(folder / archive.name)
    for wheel in raw.glob("*.whl"):
        run(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "-w", folder, wheel)
    shutil.rmtree(raw)
    files = sorted(folder.iterdir())
    if newer := [path.name for path in files if path.suffix == ".whl" and OLDEST not in path.name]:
        sys.exit(f"{', '.join(newer)}: wheels that systems with {OLDEST} refuse")
    return files


def install_and_simulate(wheel: Path) -> None:
    """Install a wheel in a bare Debian, and simulate there."""
    with tempfile.TemporaryDirectory(prefix="tracebed-bare-") as root:
        run("tar", "-C", root, "-xf", base_archive())
        pip = (sys.executable, "-m", "pip", "--quiet", "install", "--python-version", "3.11", "--only-binary", ":all:")
        run(*pip, "--target", Path(root, "opt/tracebed"), wheel)
        run("chroot", root, "sh", "-c", FIRST_USE)


def main() -> None:
    """Build and check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist", help="new or empty folder for the files")
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    files = build(folder)
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    run(Path(sys.executable).with_name("cffconvert"), "--validate", "-i", "CITATION.cff")
    (wheel,) = (path for path in files if path.name.endswith(f"{os.uname().machine}.whl"))
    install_and_simulate(wheel)
    sys.stdout.writelines(f"{path}\n" for path in files)


if __name__ == "__main__":
    main()
