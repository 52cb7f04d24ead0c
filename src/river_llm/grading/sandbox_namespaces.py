"""Run a command in Linux namespaces of its own, by system calls alone.

Started by path as ``python -I sandbox_namespaces.py SPECIFICATION COMMAND...``; imports the
standard library only. The specification is JSON: ``shown`` (pairs of a path outside and the path
inside where it is seen read-only), ``scratch_bytes`` and ``scratch_files`` (size of the only
writable folder, ``/tmp``, kept in memory).

The command sees a file system that holds nothing else, no process but its own, no network device,
no IPC object, and cannot make further user namespaces. The first process of the new PID namespace
waits for the command; when it ends, the kernel kills whatever else is left there.
"""

import ctypes
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_NEW_MOUNTS, _NEW_UTS, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _REMOUNT = 1, 2, 4, 32
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_STATE_FLAGS = {os.ST_NOSUID: 2, os.ST_NODEV: 4, os.ST_NOEXEC: 8}
_DETACH = 2
_SET_PARENT_DEATH_SIGNAL, _SET_DUMPABLE, _SET_NO_NEW_PRIVILEGES = 1, 4, 38
_DEVICES = ("null", "zero", "full", "random", "urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Make the namespaces, start the command there, and end as it ends."""
    specification = json.loads(sys.argv[1])
    _unshare(os.getuid(), os.getgid())
    # Not before: new rights take the wish back.
    _checked("prctl", _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0))
    first = os.fork()
    if first == 0:
        _checked("prctl", _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0))
        _change_root(specification)
        os._exit(_first_process(sys.argv[2:]))
    os.closerange(0, 256)  # the channel is the command's alone
    os._exit(_wait(first))


def _unshare(user: int, group: int) -> None:
    """Leave all namespaces. Root needs no user namespace, and becomes another user later."""
    rest = _NEW_MOUNTS | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_UTS
    if user == 0:
        _checked("unshare", _libc.unshare(rest))
        return
    _checked("unshare", _libc.unshare(_NEW_USER | rest))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def _change_root(specification: dict[str, Any]) -> None:
    """Make a file system of what is shown and an empty ``/tmp`` the only one."""
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    # The old root stays below it until all is bound, so any folder may be covered by the new one.
    _mount("tmpfs", "/tmp", "tmpfs", _NO_SUID | _NO_DEVICES, "size=1m,mode=755")
    root = Path("/tmp")
    inside, outside = root / "new", root / "old"
    inside.mkdir()
    _mount("tmpfs", str(inside), "tmpfs", _NO_SUID | _NO_DEVICES, "size=1m,mode=755")
    outside.mkdir()
    _checked("pivot_root", _libc.syscall(_pivot_root_number(), b"/tmp", b"/tmp/old"))
    os.chdir("/")
    inside, outside = Path("/new"), Path("/old")
    for source, place in specification["shown"]:
        _show(outside / source.lstrip("/"), inside / place.lstrip("/"))
    for name in _DEVICES:
        _bind(outside / "dev" / name, inside / "dev" / name)
    scratch = inside / "tmp"
    scratch.mkdir()
    _mount(
        "tmpfs",
        str(scratch),
        "tmpfs",
        _NO_SUID | _NO_DEVICES,
        f"size={specification['scratch_bytes']},nr_inodes={specification['scratch_files']},mode=1777",
    )
    _checked("umount", _libc.umount2(b"/old", _DETACH))
    os.chdir(inside)
    _checked("pivot_root", _libc.syscall(_pivot_root_number(), b".", b"."))
    _checked("umount", _libc.umount2(b".", _DETACH))
    _mount("none", "/", None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEVICES)
    os.chdir("/tmp")


def _pivot_root_number() -> int:
    """Of the system call, which the C library gives no name."""
    numbers = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
    machine = os.uname().machine
    if machine not in numbers:
        raise OSError(f"pivot_root has no known number on {machine}")
    return numbers[machine]


def _show(source: Path, place: Path) -> None:
    """Bind a file or folder, with the mounts below it, and make it read-only."""
    _bind(source, place)
    lowest = str(place)
    lines = Path("/old/proc/self/mountinfo").read_text().splitlines()
    below = [_unescaped(line.split()[4]) for line in lines]
    for mounted in [lowest, *(path for path in below if path.startswith(lowest + "/"))]:
        # An unprivileged remount must keep the flags that the mount has.
        kept = os.statvfs(mounted).f_flag
        flags = sum(flag for state, flag in _STATE_FLAGS.items() if kept & state)
        wanted = _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEVICES | flags
        _mount("none", mounted, None, wanted)


def _unescaped(path: str) -> str:
    """A path of mountinfo, where blanks and the like are octal."""
    return re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), path)


def _bind(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        place.mkdir(exist_ok=True)
    else:
        place.touch()
    _mount(str(source), str(place), None, _BIND | _RECURSIVE)


def _first_process(command: list[str]) -> int:
    """Wait for the command, and for orphans on the way; its exit status."""
    _checked("prctl", _libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    child = os.fork()
    if child == 0:
        os.execv(command[0], command)
    # Nothing inside may look into this process or, by a signal that it handles, end it.
    _checked("prctl", _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.closerange(0, 256)
    return _wait(child)


def _wait(child: int) -> int:
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _mount(source: str, place: str, kind: str | None, flags: int, options: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(place),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    _checked(f"mount on {place}", result)


def _checked(name: str, result: int) -> None:
    """Raise what the system call left as its error."""
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(str(error))
