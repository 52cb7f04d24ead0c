"""The decoder in a checkpoint: all of it, or the text tower of a multimodal one.

Imports torch and transformers alone beside the project's error, as the process that times
transformers by itself does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from river_llm.errors import UserError

_WITH_TEXT_TOWER = ("mistral3",)
"""Multimodal models whose text tower is a decoder that the adapter drives."""
_TEXT_TOWER = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}
"""Names of a text tower's weights inside a multimodal checkpoint (as published, and as
transformers 5 names them) -> in a model of the tower alone."""
NO_FOREIGN_CODE = {"trust_remote_code": False}
"""For every `from_pretrained`: left out, transformers asks a terminal whether to run the code that
a checkpoint brings along. The adapter drives no model that needs any."""
_VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_")
"""What has no place there."""

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
"""Endings of weights that `torch.save` wrote."""


def decoder_config(path: str) -> Any:
    """The configuration of a checkpoint's decoder: its own, or that of its text tower.

    Args:
        path: a folder or a hub id.

    Raises:
        UserError: the weights are quantized, so that there is no 16-bit backbone, or the model is
            defined by code that the checkpoint brings along.
        OSError, ValueError: transformers cannot read it.
    """
    return _decoder_config(_whole_config(path), path)


def _whole_config(path: str) -> Any:
    with foreign_code_refused(path):
        return AutoConfig.from_pretrained(path, **NO_FOREIGN_CODE)


@contextmanager
def foreign_code_refused(path: str) -> Iterator[None]:
    """Tells in one line what transformers says of code that a checkpoint brings along.

    Args:
        path: of the checkpoint, for the message.

    Raises:
        UserError: configuration or tokenizer are defined by such code.
    """
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise UserError(
            f"model.path={path} is defined by code that it brings along, and such code is not run "
            "here: use a checkpoint whose architecture and tokenizer transformers itself knows"
        ) from error


def _decoder_config(config: Any, path: str) -> Any:
    text = config.text_config if config.model_type in _WITH_TEXT_TOWER else config
    settings = getattr(config, "quantization_config", None) or getattr(
        text, "quantization_config", None
    )
    if not settings:
        return text
    method = dict(settings).get("quant_method", "unknown method")
    advice = "a 16-bit checkpoint"
    if config.model_type == "mistral3":
        advice = (
            "the one whose name ends in -BF16 "
            "(model.path=mistralai/Ministral-3-8B-Instruct-2512-BF16)"
        )
    raise UserError(
        f"model.path={path} has quantized weights ({method}), but a backbone runs at 16 bits: "
        f"use {advice}"
    )


def load_decoder(path: str, dtype: torch.dtype, **settings: Any) -> PreTrainedModel:
    """A checkpoint's decoder; what else the checkpoint holds is not read into memory.

    Args:
        path: a folder or a hub id.
        dtype: of the weights.
        settings: more for transformers' `from_pretrained`.

    Raises:
        UserError: see :func:`decoder_config`; or the weights are pickled.
        ValueError: weights that the decoder needs are not there (transformers would go on with
            random ones), or a text tower has weights that its class does not know.
        OSError: transformers cannot read it.
    """
    whole = _whole_config(path)
    text = _decoder_config(whole, path)
    settings |= {"config": text, "dtype": dtype, "output_loading_info": True}
    _check_no_pickle(path)
    settings |= {"use_safetensors": True, **NO_FOREIGN_CODE}
    if text is whole:
        model, report = AutoModelForCausalLM.from_pretrained(path, **settings)
        strange: list[str] = []
    else:
        verbosity = logging.get_verbosity()
        # Each weight of the vision tower would be reported, as one that may be missed.
        logging.set_verbosity_error()
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                path, key_mapping=_TEXT_TOWER, **settings
            )
        finally:
            logging.set_verbosity(verbosity)
        strange = [name for name in report["unexpected_keys"] if not name.startswith(_VISION)]
    if report["missing_keys"]:
        raise ValueError(f"the checkpoint lacks {sorted(report['missing_keys'])[0]}")
    if strange:
        raise ValueError(f"the checkpoint has {sorted(strange)[0]}, which a text tower has not")
    prepared: PreTrainedModel = model
    return prepared


def _check_no_pickle(path: str) -> None:
    """Refuses a folder whose weights are pickled: such a file is a program, not numbers alone."""
    folder = Path(path)
    pickled = sorted(file.name for file in folder.glob("*") if file.suffix in _PICKLED)
    if pickled and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"model.path={path} has its weights in {pickled[0]}, a pickled file, which could run "
            "code when it is read: use a checkpoint in safetensors"
        )
