"""A script of the project with faults around it.

    python tests/faults/faulty_run.py '{"file_size": 4096}' run.py exp=gsm_mini

Keys of the first argument, all of them optional:

environment: variables, put into place of this process's own.
log: file that gets the length of each prompt for which a text is begun.
file_size: bytes that no file may exceed.
tmpfs: {folder, size, kept}: a small file system of its own at the folder, whose content is copied
    to the new folder `kept` when the script has ended.
read_only: folder that nobody can write to, whoever they are.
proc: folder that stands for /proc where free memory is read.
stdout: file in the place of standard output.
second: {stdout, stderr, status}: files of a second process that does the same at the same time.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NEW_MOUNTS, NEW_USERS = 0x20000, 0x10000000
READ_ONLY, REMOUNT, BIND = 1, 32, 4096


def own_mounts() -> None:
    """Lets this process mount what no other one sees; refused by some kernels and containers."""
    user, group = os.getuid(), os.getgid()
    _call("unshare", NEW_USERS | NEW_MOUNTS)
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1", "ascii")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1", "ascii")


def may_mount() -> bool:
    """Whether :func:`own_mounts` works here, tried in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            own_mounts()
            mount_small(Path("/mnt"), 4096)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def mount_small(folder: Path, size: int) -> None:
    """A file system of `size` bytes at a folder."""
    _call("mount", b"none", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode())


def mount_read_only(folder: Path) -> None:
    """The same folder, which cannot be written to."""
    place = os.fsencode(folder)
    _call("mount", place, place, None, BIND, None)
    # What else the file system was mounted with must stay.
    kept = os.statvfs(folder).f_flag & 0xF
    _call("mount", None, place, None, BIND | REMOUNT | READ_ONLY | kept, None)


def _call(name: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def log_texts(path: Path) -> None:
    """Writes down each text that is begun, at once."""
    from river_llm.evaluation import samples

    original = samples.generate

    def logged(decoder: Any, prompt: Any, *rest: Any) -> Any:
        with path.open("a", encoding="ascii") as file:
            file.write(f"{len(prompt)}\n")
        return original(decoder, prompt, *rest)

    samples.generate = logged  # type: ignore[assignment]


def fork_second(files: Mapping[str, str]) -> int:
    """Becomes two processes; 0 in the second one, whose output goes to its own files."""
    child = os.fork()
    if child == 0:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(files[name], os.O_WRONLY | os.O_CREAT), number)
    return child


def main(faults: Mapping[str, Any], script: str, arguments: list[str]) -> None:
    """Sets the faults up and becomes the script."""
    # A parent that ignores it would pass that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(faults.get("environment", {}))
    if "log" in faults:
        log_texts(Path(faults["log"]))
    if "proc" in faults:
        from river_llm.quant import footprint

        footprint.PROC = Path(faults["proc"])
    if "tmpfs" in faults or "read_only" in faults:
        own_mounts()
    if "tmpfs" in faults:
        mount_small(Path(faults["tmpfs"]["folder"]), faults["tmpfs"]["size"])
    if "read_only" in faults:
        mount_read_only(Path(faults["read_only"]))
    if "stdout" in faults:
        os.dup2(os.open(faults["stdout"], os.O_WRONLY), 1)
    if "file_size" in faults:
        resource.setrlimit(resource.RLIMIT_FSIZE, (faults["file_size"],) * 2)
    second = fork_second(faults["second"]) if "second" in faults else 0
    sys.argv = [str(ROOT / script), *arguments]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        if second:
            status = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
            Path(faults["second"]["status"]).write_text(str(status), "ascii")
        if "tmpfs" in faults:
            shutil.copytree(faults["tmpfs"]["folder"], faults["tmpfs"]["kept"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:])
