"""Folders that are made once, kept on disk, and trusted only after a check.

A folder appears complete or not at all (made under a temporary name, then renamed), and a
manifest with the size and hash of every file tells a good one from a half-written, truncated,
altered or foreign one, which is then made anew. Converted models and packed river weights are
kept this way.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from river_llm.errors import UserError

MANIFEST = "manifest.json"


def ensure_folder(
    folder: Path,
    origin: Mapping[str, Any],
    files: frozenset[str],
    make: Callable[[Path], None],
) -> Path:
    """Makes `folder` unless it already holds exactly what it should, in good order.

    Of several processes at once one makes it while the others wait.

    Args:
        folder: where the files are, or will be.
        origin: what they are made from (format number, hashes, settings), as plain data.
        files: names of the files, the manifest aside.
        make: writes the files into the empty folder it is given.

    Returns:
        `folder`.

    Raises:
        UserError: the folder cannot be written.
    """
    if find_fault(folder, origin, files) is None:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock")):
            # Looked at again: another process may have made it while this one waited.
            fault = find_fault(folder, origin, files)
            if fault is not None:
                if os.path.lexists(folder):
                    print(f"river_llm: {folder}: {fault}; making it anew", file=sys.stderr)
                _make(folder, origin, files, make)
    # safetensors tells of a full disk by an error of its own.
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"cannot write {folder}: {error}; set RIVER_LLM_CACHE to a writable folder with "
            "enough space"
        ) from error
    return folder


def find_fault(folder: Path, origin: Mapping[str, Any], files: frozenset[str]) -> str | None:
    """What is wrong with a folder, in a few words; None when it is in good order.

    Reads every byte: sizes and dates alone would let an altered file through, and a file too
    many can change what a loader takes from the folder.
    """
    try:
        present = {path.name for path in folder.iterdir()}
        if MANIFEST not in present:
            return f"{MANIFEST} is missing (half-written or not ours)"
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
            return f"{MANIFEST} is not ours"
        if manifest.get("origin") != dict(origin):
            return "it was made from another source or by another version"
        if differing := sorted(present ^ (files | {MANIFEST})):
            return f"files missing or not ours: {', '.join(differing)}"
        for name in sorted(files):
            if manifest["files"].get(name) != _fingerprint(folder / name):
                return f"{name} is not what was written there"
    except (OSError, ValueError) as error:
        return f"it cannot be read ({error})"
    return None


def _make(
    folder: Path,
    origin: Mapping[str, Any],
    files: frozenset[str],
    make: Callable[[Path], None],
) -> None:
    # Fixed names, since the lock lets one process in: what a killed one left is cleared away.
    new = folder.with_name(f".{folder.name}.new")
    old = folder.with_name(f".{folder.name}.old")
    for leftover in (new, old):
        _remove(leftover)
    try:
        new.mkdir()
        make(new)
        manifest = {
            "origin": dict(origin),
            "files": {name: _fingerprint(new / name) for name in sorted(files)},
        }
        (new / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if os.path.lexists(folder):
            folder.rename(old)
        new.rename(folder)
    finally:
        _remove(new)
        _remove(old)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fingerprint(path: Path) -> dict[str, int | str]:
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel drops the lock when its process ends, however it ends; the file stays.
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
