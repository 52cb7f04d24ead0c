"""How a program is contained at each level of ``sandbox``: the command that wraps its interpreter.

``docs/sandbox.md`` says what each level stops and what not.
"""

import contextlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

CONTAINING = ("bubblewrap", "namespaces")
"""Levels that keep a program from files, network and other processes; the strongest first."""

WORKER = Path(__file__).with_name("sandbox_worker.py")
_NAMESPACES = Path(__file__).with_name("sandbox_namespaces.py")
_PLACE = "/river-llm/sandbox_worker.py"
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SCRATCH_BYTES = 64 << 20
_SCRATCH_FILES = 4096
_PROCESSES = 64  # above what the user already runs; the kernel does not apply it to root
_NOBODY = 65534


@dataclass(frozen=True)
class Containment:
    """How to start the program's interpreter.

    Attributes:
        wrapper: Words that stand before the interpreter's own command.
        worker: Path at which that interpreter finds ``sandbox_worker.py``.
        home: Its folder for temporary files; None: a fresh one of the harness.
        user: Numeric id it changes to; None: it stays the user it is.
        processes: Most processes and threads of that user; None: they cannot be counted.
    """

    wrapper: tuple[str, ...]
    worker: str
    home: str | None
    user: int | None
    processes: int | None


def missing(level: str) -> str | None:
    """What the level needs that is plainly not here; None: a trial must show whether it works."""
    if level in CONTAINING and sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    return None


def containment(level: str) -> Containment:
    """The parts of the level's command; call `missing` first."""
    if level == "process":
        return Containment((), str(WORKER), None, None, _most_processes(os.getuid()))
    root = os.getuid() == 0
    wrap = _bubblewrap if level == "bubblewrap" else _namespaces
    user = _NOBODY if root else None
    most = _most_processes(_NOBODY if root else os.getuid())
    return Containment(wrap(shown_paths(), root), _PLACE, "/tmp", user, most)


def shown_paths() -> list[tuple[str, str]]:
    """Pairs of a path here and the path at which the program sees it, read-only.

    The system's programs and libraries and this interpreter's installation and packages; nothing
    that holds the user's home.
    """
    interpreter = Path(os.path.realpath(sys.executable)).parent.parent
    prefixes = {str(interpreter)}
    for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
        prefixes |= {prefix, os.path.realpath(prefix)}
    home = Path(os.path.realpath(Path.home()))
    own = {path for path in prefixes if not home.is_relative_to(os.path.realpath(path))}
    pairs = [(str(WORKER), _PLACE)]
    seen: list[str] = []
    for path in sorted({*_SYSTEM, *own}, key=lambda path: (len(path), path)):
        if os.path.exists(path) and not any(Path(path).is_relative_to(above) for above in seen):
            seen.append(path)
            pairs.append((os.path.realpath(path), path))
    return pairs


def _bubblewrap(shown: list[tuple[str, str]], root: bool) -> tuple[str, ...]:
    words = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--unshare-cgroup-try"]
    words += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    if root:  # the worker gives root up; that takes these two rights, and loses them
        words += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--disable-userns"]
    places = [*(place for _, place in shown), *_DEVICES]
    # Made on the way, they would be closed to all but root.
    above = {str(folder) for place in places for folder in Path(place).parents} - {"/"}
    for folder in sorted(above):
        words += ["--perms", "755", "--dir", folder]
    for source, place in shown:
        words += ["--ro-bind", source, place]
    for device in _DEVICES:
        words += ["--dev-bind", device, device]
    words += ["--perms", "1777", "--size", str(_SCRATCH_BYTES), "--tmpfs", "/tmp"]
    return (*words, "--remount-ro", "/", "--chdir", "/tmp", "--")


def _namespaces(shown: list[tuple[str, str]], _root: bool) -> tuple[str, ...]:
    specification = {
        "shown": shown,
        "scratch_bytes": _SCRATCH_BYTES,
        "scratch_files": _SCRATCH_FILES,
    }
    return (sys.executable, "-I", str(_NAMESPACES), json.dumps(specification))


def _most_processes(user: int) -> int | None:
    """The user's threads that run now and some more; None without /proc."""
    count = 0
    try:
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):  # it may end while we look
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    except OSError:
        return None
    return count + _PROCESSES
