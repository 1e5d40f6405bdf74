"""The commands of a provider on a node, run by its Python. The file is sent there as `python3 -I -c TEXT VERB ...`.

    probe FOLDER                  report the Python, the kernel, and what is installed in FOLDER
    install FOLDER DIGEST         unpack the wheel that arrives as standard input into an environment in FOLDER
    share FOLDER FILE...          check that the files exist here, and print the folder for sockets of agents
    end FOLDER [NODE STAMP]       kill the commands of FOLDER, or those of a node that were started until STAMP
    remove FOLDER                 kill the commands of FOLDER, then remove FOLDER if `install` made it
    pack SPOOL NODE               write the files of a node in SPOOL as a tar archive to standard output

A command on a node has the environment variable `MARK`, which its children inherit. `end` finds them by this variable,
also in other sessions and process groups, and without a list of processes that could be outdated. An environment is a
virtual environment in all respects, but neither pip nor ensurepip are needed on the node: the wheel is unpacked.

The file imports only the standard library, and can be parsed by Python 3.6, so that it can report an old Python.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (this is where it is checked)
    sys.exit("Python %d.%d is too old; tracebed needs 3.11 or newer" % sys.version_info[:2])  # noqa: UP031

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

# Environment variable of all commands on a node: folder, node and stamp, separated by line feeds.
MARK = "TRACEBED_NODE"
MADE = ".tracebed-node"  # file in a folder that `install` made
# File in a parent folder that `install` made. The last folder that is removed from there takes the parent along.
PARENT = ".tracebed-parent"
REMOVED_MARK = ".removed-"  # part of the name of a folder that is being removed
END_S = 5.0  # time in which killed processes must disappear, s


def probe(folder: Path) -> dict[str, object]:
    """Return the facts of the node that decide what is installed.

    `environments` are the installed ones by digest, `free_mib` is the free space of the file system of the folder, and
    `address` is the address of the node to which this SSH connection leads.
    """
    above = next(path for path in (folder, *folder.parents) if path.is_dir())
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {
        "folder": str(folder),
        "temporary": str(temporary(folder)),
        "python": sys.version.split()[0],
        "system": sys.platform,
        "kernel": os.uname().release,
        "platform": sysconfig.get_platform(),
        "user": os.geteuid(),
        "writable": os.access(above, os.W_OK | os.X_OK),
        "free_mib": shutil.disk_usage(above).free // 2**20,
        "environments": sorted(path.name for path in folder.glob("env-*") if (path / "bin" / "python").exists()),
        "address": connection[2] if len(connection) == 4 else None,
    }


def temporary(folder: Path) -> Path:
    """Return the folder for sockets of agents. It is on a disk of the node, and has a short path."""
    return Path(tempfile.gettempdir()) / f"tracebed-{os.geteuid()}-{hashlib.sha256(bytes(folder)).hexdigest()[:8]}"


def make_temporary(folder: Path) -> Path:
    """Make the folder for sockets of agents, which only this user can read."""
    path = temporary(folder)
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user")
    return path


def share(folder: Path, files: Sequence[str]) -> Path:
    """Check that this machine has the files of the controller, and make the folder for sockets of agents."""
    for file in files:
        if not Path(file).exists():
            raise FileNotFoundError(f"{file} is missing")
    return make_temporary(folder)


def environment(digest: str) -> str:
    """Return the name of the environment with a wheel, for the Python that runs this."""
    return f"env-{digest}-{sysconfig.get_python_version()}"


def make(folder: Path) -> bool:
    """Make a folder and its missing parents. Return whether this call made the folder."""
    if folder.exists():
        return False
    if make(folder.parent):
        (folder.parent / PARENT).touch()
    try:
        folder.mkdir()
    except FileExistsError:  # another host that shares the folder has made it
        return False
    return True


def install(folder: Path, digest: str, wheel: bytes) -> None:
    """Unpack the wheel into its environment, unless it exists. Another host may do the same in the same folder."""
    found = hashlib.sha256(wheel).hexdigest()[: len(digest)]
    if found != digest:
        raise ValueError(f"the wheel was damaged in transfer: its digest is {found}, not {digest}")
    os.umask(0o077)
    made = make(folder)
    # In this order: another host that shares the folder makes `MADE` before any other file.
    if not made and any(folder.iterdir()) and not (folder / MADE).exists():
        raise FileExistsError(f"{folder} has files that tracebed did not create")
    (folder / MADE).touch()
    make_temporary(folder)
    target = folder / environment(digest)
    if target.exists():
        return
    part = Path(tempfile.mkdtemp(prefix=".env-", dir=folder))
    try:
        version = sysconfig.get_python_version()
        packages = part / "lib" / f"python{version}" / "site-packages"
        packages.mkdir(parents=True)
        (part / "bin").mkdir()
        base = Path(getattr(sys, "_base_executable", sys.executable))
        (part / "bin" / "python").symlink_to(base)
        # Packages of the node stay importable: NumPy where the compiled kernel cannot be loaded.
        (part / "pyvenv.cfg").write_text(
            f"home = {base.parent}\ninclude-system-site-packages = true\nversion = {version}\n"
        )
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            archive.extractall(packages)
        part.rename(target)
    except OSError:
        if not target.exists():  # otherwise, a host that shares the file system has installed it
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def marked(folder: Path, node: str = "", stamp: str = "") -> list[int]:
    """Return the processes of this user with the mark of the folder, or of a node of the folder until a stamp."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                name, _, value = os.fsdecode(variable).partition("=")
                mark = value.split("\n")
                ours = name == MARK and len(mark) == 3 and mark[0] == str(folder)
                if ours and (not node or (mark[1] == node and mark[2] <= stamp)):
                    found.append(int(entry.name))
    return found


def end(folder: Path, node: str = "", stamp: str = "") -> int:
    """Kill the marked processes, and wait until they have disappeared. Return the number of killed processes."""
    killed: set[int] = set()
    until = time.monotonic() + END_S
    while True:
        found = marked(folder, node, stamp)
        if not found:
            return len(killed)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        if time.monotonic() > until:
            raise TimeoutError(f"the processes {found} were killed and have not ended: a disk may hang")
        time.sleep(0.01)


def remove(folder: Path) -> bool:
    """Kill the commands of the folder, and remove the folder if `install` made it. Return whether it was removed."""
    end(folder)
    shutil.rmtree(temporary(folder), ignore_errors=True)
    if not (folder / MADE).exists():
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{folder} has files that tracebed did not create")
        return False
    removed = folder.with_name(f"{folder.name}{REMOVED_MARK}{os.uname().nodename}-{os.getpid()}")
    try:
        folder.rename(removed)  # hosts may share the folder, and only one of them can remove it
    except FileNotFoundError:
        return False
    shutil.rmtree(removed)
    for parent in folder.parents:
        with contextlib.suppress(OSError):  # another host that shares the folder does the same
            if not (parent / PARENT).exists() or any(belongs(path) for path in parent.iterdir()):
                break
            (parent / PARENT).unlink()
            parent.rmdir()  # fails if the folder is used for something else now
    return True


def belongs(path: Path) -> bool:
    """Return whether `install` made a folder, also if the folder is being removed."""
    return REMOVED_MARK in path.name or (path / MADE).exists() or (path / PARENT).exists()


def pack(spool: Path, node: str) -> None:
    """Write the files `job-*/NODE.*` of the spool as a tar archive to standard output."""
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|gz") as archive:
        for path in sorted(spool.glob("job-*/*")):
            if path.name.startswith(f"{node}.") and path.is_file():
                archive.add(path, str(path.relative_to(spool)), recursive=False)


def main(verb: str, *arguments: str) -> None:
    """Execute the verb."""
    folder = Path.home() / Path(arguments[0]).expanduser()
    if verb == "probe":
        sys.stdout.write(json.dumps(probe(folder)))
    elif verb == "install":
        install(folder, arguments[1], sys.stdin.buffer.read())
    elif verb == "share":
        sys.stdout.write(f"{share(folder, arguments[1:])}\n")
    elif verb == "end":
        sys.stdout.write(str(end(folder, *arguments[1:])))
    elif verb == "remove":
        sys.stdout.write(str(folder) if remove(folder) else "")
    elif verb == "pack":
        pack(folder, arguments[1])
    else:
        raise ValueError(f"unknown verb {verb!r}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, ValueError) as error:
        sys.exit(f"{error}")
