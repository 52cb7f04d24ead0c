"""transformers by itself times the text tower of a multimodal checkpoint as well."""

from __future__ import annotations

import torch

from river_llm.benchmark.hf_alone import Request, load
from tiny_checkpoints import save_checkpoint


def test_the_text_tower_is_what_is_timed(tmp_path):
    folder = save_checkpoint("ministral3_8b", tmp_path / "ministral")
    request = Request(
        folder=str(folder),
        random=False,
        dtype="float32",
        device="cpu",
        threads=1,
        prompt=[1, 20, 30],
        steps=1,
        rounds=1,
        seed=0,
    )
    model = load(request)
    assert type(model).__name__ == "Ministral3ForCausalLM"
    assert model.dtype == torch.float32
    assert model.config._attn_implementation == "sdpa"
