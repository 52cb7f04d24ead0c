"""The program's side of ``sandbox``: a process that holds one untrusted program and serves calls.

Started by path as ``python -I sandbox_worker.py SETTINGS``; imports the standard library only, and
lies alone in the contained file system. Of the tests it learns nothing but the arguments of the
calls: what is asserted stands in another process, which never evaluates anything that comes from
here, but reads plain values as JSON (`encode`, `decode`).
"""

import contextlib
import ctypes
import errno
import fractions
import functools
import json
import os
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Any

_ADDRESS_SPACE_BYTES = 4 << 30
_FILE_BYTES = 64 << 20
_OPEN_FILES = 256
_MOST_ITEMS = 1_000_000
_JOIN_SESSION_KEYRING, _CLEAR_KEYRING, _USER_KEYRINGS = 1, 7, (-4, -5)
_NO_KEYRINGS = (errno.ENOSYS, errno.EPERM)

KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
"""Number of the system call, which the C library gives no name."""
_DETAIL_CHARACTERS = 300


class Unsendable(TypeError):
    """The tests hand over a value that has no plain form."""


class Foreign:
    """A value of the program that has no plain form: equal to nothing, and at most iterable.

    Args:
        kind: name of its type.
        items: what iterating it gives; None: it cannot be iterated.
        truth: what it counts as in a condition; None: it refuses to say.
    """

    def __init__(self, kind: str, items: list[Any] | None, truth: bool | None) -> None:
        self._kind = kind
        self._items = items
        self._truth = truth

    def __bool__(self) -> bool:
        if self._truth is None:
            raise TypeError(f"{self._kind!r} object has no truth")
        return self._truth

    def __repr__(self) -> str:
        return f"<{self._kind} of the program>"

    def __iter__(self) -> Iterator[Any]:
        if self._items is None:
            raise TypeError(f"{self._kind!r} object is not iterable")
        return iter(self._items)


def encode(value: Any, *, strict: bool = False) -> Any:
    """A plain value as what JSON can hold: whole in value, and of the type it compares like.

    Args:
        value: None, bool, int, float, complex, str, bytes, list, tuple, dict, set, range, deque,
            Fraction, Decimal (subclasses count as these), a NumPy scalar, or anything else.
        strict: whether anything else is refused; else it becomes a `Foreign`.

    Raises:
        Unsendable: With `strict`, a value of the tests' that is none of these.
        TypeError: With `strict`, one of the program's own, which cannot go back to it.
        ValueError: An iterable of more than a million items.
    """

    def each(items: Iterable[Any]) -> list[Any]:
        return [encode(item, strict=strict) for item in items]

    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) < value < 2**63 else {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return each(value)
    if isinstance(value, tuple):
        return {"tuple": each(value)}
    if isinstance(value, dict):
        return {"dict": [[encode(k, strict=strict), *each([v])] for k, v in value.items()]}
    if isinstance(value, set | frozenset):
        return {"set" if isinstance(value, set) else "frozenset": each(value)}
    if isinstance(value, bytes | bytearray):
        return {"bytes" if isinstance(value, bytes) else "bytearray": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": each([value.start, value.stop, value.step])}
    if isinstance(value, deque):
        return {"deque": each(value)}
    if isinstance(value, fractions.Fraction):
        return {"fraction": each([value.numerator, value.denominator])}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        plain = value.item()
        return float(plain) if type(plain) is kind else encode(plain, strict=strict)
    if isinstance(value, Foreign):
        raise TypeError(f"{value!r} cannot be handed back to it")
    if strict:
        raise Unsendable(f"a value of type {kind.__name__} cannot be handed to the program")
    truth = None
    with contextlib.suppress(Exception):
        truth = bool(value)
    if kind in (types.FunctionType, type) or not hasattr(value, "__iter__"):
        return {"foreign": [kind.__name__, None, truth]}
    items = list(islice(value, _MOST_ITEMS + 1))
    if len(items) > _MOST_ITEMS:
        raise ValueError(f"more than {_MOST_ITEMS} items")
    return {"foreign": [kind.__name__, each(items), truth]}


def decode(plain: Any) -> Any:
    """The value that `encode` made `plain` of.

    Raises:
        ValueError, TypeError: Not of `encode`'s making.
    """
    if isinstance(plain, list):
        return [decode(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, given),) = plain.items()
    if kind == "foreign":
        name, items, truth = given
        items = None if items is None else list(decode(items))
        return Foreign(
            str(name)[:_DETAIL_CHARACTERS], items, truth if isinstance(truth, bool) else None
        )
    if kind == "int":
        return int(given, 16)
    if kind in ("bytes", "bytearray"):
        return (bytes if kind == "bytes" else bytearray).fromhex(given)
    if kind == "decimal":
        return Decimal(given)
    items = decode(given)
    if kind == "dict":
        return dict(items)
    if kind in ("complex", "range", "fraction"):
        return {"complex": complex, "range": range, "fraction": fractions.Fraction}[kind](*items)
    sequences = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
    if kind in sequences:
        return sequences[kind](items)
    raise ValueError(f"unknown kind {kind!r:.40}")


def message(error: BaseException) -> str:
    """An exception's message on one line; empty if its own ``__str__`` fails."""
    text = ""
    with contextlib.suppress(BaseException):
        text = str(error)
    line = " ".join(text[:_DETAIL_CHARACTERS].split())
    return line.encode("utf-8", "backslashreplace").decode("utf-8")  # half a character is no text


def limit_resources(timeout_s: float, processes: int | None) -> list[str]:
    """Limit this process; return what the system refused, as readable lines.

    Args:
        timeout_s: Wall-clock limit of the program in seconds; its CPU time may be two more.
        processes: Most processes and threads of this user; None: they could not be counted.
    """
    try:
        import resource
    except ImportError:
        return ["no resource limits on this system"]
    wanted = {
        "RLIMIT_CPU": int(timeout_s) + 2,
        "RLIMIT_AS": _ADDRESS_SPACE_BYTES,
        "RLIMIT_FSIZE": _FILE_BYTES,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_CORE": 0,
    }
    refused = []
    if processes is None:
        refused.append("RLIMIT_NPROC: processes cannot be counted here")
    else:
        wanted["RLIMIT_NPROC"] = processes
    for name, value in wanted.items():
        try:
            kind = getattr(resource, name)
            ceiling = resource.getrlimit(kind)[1]
            # Behind the soft CPU limit, which sends SIGXCPU, the hard one kills.
            hard = value + 1 if name == "RLIMIT_CPU" else value
            hard = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
            resource.setrlimit(kind, (min(value, hard), hard))
        except (AttributeError, ValueError, OSError) as error:
            refused.append(f"{name}: {error}")
    return refused


def main() -> None:
    """Take one program, load it, and answer calls of its functions until nobody asks any more."""
    settings = json.loads(sys.argv[1])
    channel: int = settings["channel"]
    os.set_inheritable(channel, False)
    if settings["user"] is not None:  # root gives its rights up for good
        os.setgroups([])
        os.setresgid(*[settings["user"]] * 3)
        os.setresuid(*[settings["user"]] * 3)
    refused = _leave_keyrings(settings["user"])
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # until here messages of the start could be read
        os.dup2(silent, descriptor)
    os.close(silent)
    refused += limit_resources(settings["timeout_s"], settings["processes"])
    requests = os.fdopen(channel, "rb", closefd=False)
    own = os.getpid()

    def answer(reply: dict[str, Any]) -> None:
        if os.getpid() != own:  # a fork of the program's came back
            os._exit(0)
        line = (json.dumps(reply) + "\n").encode("ascii")
        while line:
            line = line[os.write(channel, line) :]

    answer({"ready": refused})
    module = types.ModuleType("program")  # not __main__: a main block is not under test
    sys.modules["program"] = module
    sys.argv = [""]
    for line in requests:
        try:
            request = json.loads(line)
            if "program" in request:
                code = compile(request["program"], "<program>", "exec", dont_inherit=True)
                exec(code, module.__dict__)
                answer({"names": _names(module.__dict__, request["wanted"])})
            else:
                answer(_call(module.__dict__[request["call"]], request["given"]))
        except BaseException as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            answer({"error": names, "text": message(error)})


def _leave_keyrings(user: int | None) -> list[str]:
    """Give up the kernel's keyring of the session; of a user for all samples clear what is left.

    Returns:
        What was refused, as readable lines.
    """
    if sys.platform != "linux":
        return []  # there are none
    machine = os.uname().machine
    if machine not in KEYCTL:
        return [f"keyrings: the system call has no known number on {machine}"]
    keyctl = functools.partial(ctypes.CDLL(None, use_errno=True).syscall, KEYCTL[machine])
    # Where the kernel has none, or a filter forbids the call, the program cannot call it either.
    if keyctl(_JOIN_SESSION_KEYRING, None) < 0 and ctypes.get_errno() not in _NO_KEYRINGS:
        return [f"keyring of the session: {os.strerror(ctypes.get_errno())}"]
    if user is not None:
        for keyring in _USER_KEYRINGS:
            keyctl(_CLEAR_KEYRING, keyring)
    return []


def _names(scope: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    """What the program defines of the names that the tests use: how to hand each over."""
    found: dict[str, Any] = {}
    for name in wanted:
        if name in scope:
            value = scope[name]
            if isinstance(value, types.ModuleType):
                found[name] = {"module": value.__name__}
            elif callable(value):
                found[name] = {"function": name}
            else:
                found[name] = {"value": encode(value)}
    return found


def _call(function: Any, given: Any) -> dict[str, Any]:
    """The value of a call, and what the call made of its arguments."""
    positional, named = decode(given)
    value = function(*positional, **named)
    return {"value": encode(value), "given": encode([positional, named])}


if __name__ == "__main__":
    main()
