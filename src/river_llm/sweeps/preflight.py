"""What a long sweep needs and this machine lacks, found before the first large download."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from river_llm.config import RunConfig
from river_llm.errors import UserError
from river_llm.models.loading import EMBEDDED

GIB = 2**30
GPU_OVERHEAD = 2 * GIB
"""Estimate of what the CUDA context, activations and the KV cache take."""


def lacking(configs: Sequence[RunConfig], *, needs_gpu: bool) -> list[str]:
    """What has to be there before these runs can start, one line for each thing that is not.

    Args:
        configs: the runs.
        needs_gpu: whether they would take too long without a GPU. Runs whose `model.device` says
            `cpu` are taken at their word.
    """
    models = list(dict.fromkeys(config.model for config in configs))
    on_gpu = [config for config in configs if config.model.device != "cpu"]
    problems = _gpu_problems(on_gpu) if needs_gpu and on_gpu else []
    problems += _hub_problems(list(dict.fromkeys(model.path for model in models)))
    # The files of a task are small, so reading them is the check.
    tasks = {(config.exp.name, config.data): config for config in configs}
    for config in tasks.values():
        try:
            _read_data(config)
        except UserError as error:
            problems.append(f"{config.exp.name}: {error}")
    return problems


def _read_data(config: RunConfig) -> None:
    # Imported late, with the models' side of the package.
    from river_llm.evaluation.summary import build_task

    build_task(config).samples()


def _gpu_problems(configs: Sequence[RunConfig]) -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return [
            f"no GPU: torch {torch.__version__} sees none; install a CUDA build of torch on a "
            "machine with an NVIDIA GPU (model.device=cpu runs it on the CPU all the same; "
            "look at the estimate)"
        ]
    free, _ = torch.cuda.mem_get_info()
    most: dict[str, int] = {}
    for config in configs:
        most[config.model.name] = max(most.get(config.model.name, 0), gpu_bytes(config) or 0)
    return [
        f"{name}: needs about {need / GIB:.0f} GiB of GPU memory by estimate, "
        f"{free / GIB:.0f} GiB are free; leave the model out with model=..., or take a larger GPU"
        for name, need in most.items()
        if need > free
    ]


def gpu_bytes(config: RunConfig) -> int | None:
    """Estimate of a run's GPU memory; None where the shape of its model is not known here."""
    import torch

    from river_llm.models.loading import DTYPES
    from river_llm.models.random_weights import SHAPES
    from river_llm.quant.footprint import footprint

    shape = {str(name): shape for name, shape in SHAPES.items()}.get(config.model.name)
    if shape is None:
        return None
    river = config.quant if config.method.needs_river else None
    dtype, device = DTYPES[config.model.dtype], torch.device("cuda")
    need = footprint(shape.config(), dtype, device, river)
    return need.backbone + need.river + GPU_OVERHEAD


def _hub_problems(paths: Sequence[str]) -> list[str]:
    """Why checkpoints cannot be had."""
    problems = []
    unreachable: dict[str, Exception] = {}
    for path in paths:
        if path == EMBEDDED or Path(path).expanduser().is_dir() or is_cached(path):
            continue
        try:
            problem = _refused(path)
        # The hub client raises from itself, its HTTP library and the socket layer, which share
        # no base class, and every one of them means that the checkpoint cannot be had.
        except Exception as error:
            unreachable[path] = error
        else:
            problems += [] if problem is None else [problem]
    if unreachable:
        first = next(iter(unreachable.values()))
        reason = " ".join(f"{type(first).__name__}: {first}".split())[:120]
        problems.append(
            f"{', '.join(unreachable)}: not in the local cache, and the hub cannot be reached "
            f"({reason}); download them where there is a network, or give a folder with "
            "model.path="
        )
    return problems


def _refused(path: str) -> str | None:
    """Why the hub does not give a checkpoint, None where it does."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        HfApi().auth_check(path)
    except GatedRepoError:
        if get_token() is None:
            return (
                f"{path}: its licence must be accepted on the hub and no token is set; accept it "
                f"at https://huggingface.co/{path} and set HF_TOKEN, or run `hf auth login`"
            )
        return (
            f"{path}: the token that is set may not read it; accept its licence at "
            f"https://huggingface.co/{path} with the account of the token"
        )
    except RepositoryNotFoundError:
        return f"{path}: neither a folder here nor a checkpoint on the hub that may be read"
    return None


def is_cached(repository: str) -> bool:
    """Whether the hub's local cache holds a checkpoint's configuration and weights."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, "config.json")
    except HFValidationError:
        return False  # A path that is no name of a repository.
    return isinstance(found, str) and any(Path(found).parent.glob("*.safetensors"))
