"""Loading a backbone: the embedded model, a hub id, a local folder, or random weights."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedModel

from river_llm.config import RANDOM, ModelConfig, QuantConfig
from river_llm.errors import UserError
from river_llm.models.adapter import BackboneAdapter, check_supported
from river_llm.models.checkpoint import (
    NO_FOREIGN_CODE,
    decoder_config,
    foreign_code_refused,
    load_decoder,
)
from river_llm.models.embedded import ensure_embedded
from river_llm.models.random_weights import SHAPES, random_fingerprint, random_model
from river_llm.quant.footprint import check_room, footprint

EMBEDDED = "embedded"
_ALIGNED = 64
"""Bytes of a cache line, at whose start each parameter begins."""
_NOT_THE_MODEL = (
    "_name_or_path",
    "transformers_version",
    "_attn_implementation",
    "architectures",
    "dtype",
)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class LoadedModel:
    """A backbone with its tokenizer.

    Attributes:
        adapter: the backbone.
        tokenizer: its tokenizer; None: random weights, which have none.
        chat: whether prompts go through the chat template.
        eos_ids: every id that ends a text.
        fingerprint: SHA-256 of configuration and weights.
        keep_packed: whether its quantized weights are worth a place on disk.
    """

    adapter: BackboneAdapter
    tokenizer: Any
    chat: bool
    eos_ids: frozenset[int]
    fingerprint: str
    keep_packed: bool = True

    def decode(self, ids: Any) -> str:
        """Text of token ids, special tokens left out, blanks as they are."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def load_model(config: ModelConfig, river: QuantConfig | None = None) -> LoadedModel:
    """Loads weights and tokenizer, or makes random weights.

    Args:
        config: which ones, and where to.
        river: quantizer of a river that will be built beside them, so that there is room for it.

    Raises:
        UserError: device not there, model not found, architecture not known, too little memory,
            no chat template.
    """
    device = resolve_device(config.device)
    if config.path == RANDOM:
        return _random(config, device, river)
    path = str(ensure_embedded()) if config.path == EMBEDDED else config.path
    dtype = DTYPES[config.dtype]
    try:
        # Before gigabytes are loaded.
        decoder = decoder_config(path)
        check_supported(decoder)
        check_room(footprint(decoder, dtype, device, river), device, f"model.path={config.path}")
        with foreign_code_refused(config.path):
            tokenizer = AutoTokenizer.from_pretrained(path, **NO_FOREIGN_CODE)
        model = load_decoder(path, dtype)
        # transformers goes on with a tokenizer that knows no token.
        if not tokenizer("text", add_special_tokens=False)["input_ids"]:
            raise ValueError("there is no tokenizer")
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"model.path={config.path} cannot be loaded ({reason}): give a hub id that this "
            "machine can reach (gated models need a token), a local folder with model.path=, or "
            "model=smollm2_135m, which needs no hub"
        ) from error
    chat = tokenizer.chat_template is not None
    if config.chat == "always" and not chat:
        raise UserError(
            f"model.chat=always, but the tokenizer of {config.path} has no chat template: "
            "use model.chat=never"
        )
    prepared: PreTrainedModel = model.to(device).eval()
    if device.type == "cpu":
        lay_together(prepared)
    return LoadedModel(
        adapter=BackboneAdapter(prepared),
        tokenizer=tokenizer,
        chat=chat and config.chat != "never",
        eos_ids=eos_ids(prepared, tokenizer),
        fingerprint=model_fingerprint(prepared),
    )


@torch.no_grad()
def lay_together(model: PreTrainedModel) -> None:
    """Copies all parameters into one stretch of the process's own memory, in the model's order.

    As loaded they map the checkpoint's file, page by page; SmolLM2-135M's layers were read at 18
    GB/s so, and at 29 GB/s behind one another in memory (2 cores, AVX512-BF16, compiled engine).

    Args:
        model: on the CPU; tied parameters stay tied.
    """
    parameters = list(model.parameters())
    sizes = [-(-parameter.nbytes // _ALIGNED) * _ALIGNED for parameter in parameters]
    memory = torch.empty(sum(sizes), dtype=torch.uint8)
    for parameter, part in zip(parameters, memory.split(sizes), strict=True):
        place = part[: parameter.nbytes].view(parameter.dtype).view(parameter.shape)
        parameter.data = place.copy_(parameter)


def _random(config: ModelConfig, device: torch.device, river: QuantConfig | None) -> LoadedModel:
    if config.shape is None:
        raise TypeError("random weights need a shape")
    if config.chat == "always":
        raise UserError("model.chat=always, but random weights have no chat template")
    shape, dtype = SHAPES[config.shape].config(), DTYPES[config.dtype]
    check_room(footprint(shape, dtype, device, river), device, f"model.shape={config.shape}")
    model = random_model(shape, dtype, device)
    return LoadedModel(
        adapter=BackboneAdapter(model),
        tokenizer=None,
        chat=False,
        eos_ids=frozenset(),
        fingerprint=random_fingerprint(config.shape, config.dtype, device=device.type),
        keep_packed=False,
    )


def resolve_device(name: str) -> torch.device:
    """`auto`: CUDA where it is there, else CPU.

    Raises:
        UserError: a device that this machine or this torch does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"model.device={name!r} is no device: use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"model.device={name!r} is not supported: use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"model.device={name}: torch {torch.__version__} sees no CUDA device here: "
            "use model.device=cpu or install a CUDA build of torch"
        )
    return device


def eos_ids(model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a text: those of generation config, model config and tokenizer."""
    ids: set[int] = set()
    for value in (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        if isinstance(value, int):
            ids.add(value)
        elif value is not None:
            ids.update(int(item) for item in value)
    return frozenset(ids)


def model_fingerprint(model: PreTrainedModel) -> str:
    """SHA-256 over the configuration and all parameters (names, dtypes, shapes, bytes).

    The configuration counts, since the same weights with another rotary base are another model;
    where the model came from and which version wrote it does not.
    """

    def digest(item: tuple[str, torch.nn.Parameter]) -> str:
        name, parameter = item
        head = f"{name} {parameter.dtype} {tuple(parameter.shape)}"
        # Flat, and no copy: several threads hash at once, an embedding each.
        raw = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        content = hashlib.sha256(raw.data).digest()
        return hashlib.sha256(head.encode() + content).hexdigest()

    # hashlib releases the interpreter lock, so threads share the work.
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(digest, model.named_parameters()))
    settings = {k: v for k, v in model.config.to_dict().items() if k not in _NOT_THE_MODEL}
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256((text + "".join(parts)).encode()).hexdigest()
