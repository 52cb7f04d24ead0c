"""Backbones of known shapes with seeded random weights, for timing: no download, no tokenizer.

What a decode step costs depends on the shapes alone, not on what the weights say. Every preset is
a Llama of the stated shape, which the adapter drives. Two models are no Llamas and differ in
details that move no weights: Phi-4-mini rotates three quarters of each head and fuses
projections, Ministral 3 scales queries by position; rotary frequencies are unscaled here.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel

from river_llm.config import ShapeName

FORMAT = 1
"""Raised when the same shape and seed give other weights than before."""

SEED = 0

_CHUNK = 2**22


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a decoder.

    Attributes:
        layers, hidden, intermediate, vocab: sizes of the stack.
        heads, kv_heads, head_dim: of the attention.
        tied: whether the LM head is the embedding.
        context: longest text.
        rope_theta: base of the rotary embedding.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    context: int
    rope_theta: float

    @property
    def linear_parameters(self) -> int:
        """Parameters of the linears of attention and FFN, all layers together."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def parameters(self) -> int:
        """All parameters but for those of norms, which are few."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.linear_parameters + embeddings

    def config(self) -> LlamaConfig:
        """The Llama of this shape; it has no end token, so texts end by their budget alone."""
        return LlamaConfig(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.context,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            tie_word_embeddings=self.tied,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )


# Sources: the models' config.json files on the Hugging Face hub; also, for Llama 3.1 8B, "The
# Llama 3 Herd of Models" (arXiv 2407.21783, table 3), for Phi-4-mini its technical report (arXiv
# 2503.01743), and for Ministral 3 8B (text part) the defaults of transformers' Ministral3Config.
SHAPES: dict[ShapeName, Shape] = {
    # Nobody's: deep enough for a depth of 8, for trying things out.
    "tiny": Shape(
        layers=10,
        hidden=128,
        intermediate=256,
        heads=2,
        kv_heads=1,
        head_dim=64,
        vocab=512,
        tied=True,
        context=4096,
        rope_theta=1e4,
    ),
    "smollm2_135m": Shape(
        layers=30,
        hidden=576,
        intermediate=1536,
        heads=9,
        kv_heads=3,
        head_dim=64,
        vocab=49_152,
        tied=True,
        context=8192,
        rope_theta=1e5,
    ),
    "llama3.2_1b": Shape(
        layers=16,
        hidden=2048,
        intermediate=8192,
        heads=32,
        kv_heads=8,
        head_dim=64,
        vocab=128_256,
        tied=True,
        context=131_072,
        rope_theta=5e5,
    ),
    "llama3.1_8b": Shape(
        layers=32,
        hidden=4096,
        intermediate=14_336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=128_256,
        tied=False,
        context=131_072,
        rope_theta=5e5,
    ),
    "phi4_mini": Shape(
        layers=32,
        hidden=3072,
        intermediate=8192,
        heads=24,
        kv_heads=8,
        head_dim=128,
        vocab=200_064,
        tied=True,
        context=131_072,
        rope_theta=1e4,
    ),
    "ministral3_8b": Shape(
        layers=34,
        hidden=4096,
        intermediate=14_336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=131_072,
        tied=False,
        context=262_144,
        rope_theta=1e6,
    ),
}


def random_model(
    config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, seed: int = SEED
) -> PreTrainedModel:
    """A model with random weights, in evaluation mode, made without a second copy of anything.

    Norm weights are 1, biases 0; a matrix with K columns is normal with standard deviation
    1 / sqrt(K), so that a normed state has outputs near 1 and the residual stream stays finite
    over all layers.

    Args:
        config: of a supported architecture.
        dtype: of the weights; the same numbers in every dtype, rounded.
        device: where they are drawn; another kind of device gives other numbers.
        seed: of the weights.
    """
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    model = model.to(dtype).to_empty(device=device)
    # An empty copy of a tied weight has no link to its origin.
    model.tie_weights()
    # Its frequencies are no weights: computed when it is built, in float32 for every dtype.
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.dim() > 1:
            _fill_normal(parameter, parameter.shape[-1] ** -0.5, generator)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return model.eval()


def random_fingerprint(shape: ShapeName, dtype: str, seed: int = SEED, device: str = "cpu") -> str:
    """What stands for the hash of random weights, which follow from these alone."""
    text = f"random {FORMAT} {sorted(asdict(SHAPES[shape]).items())} {dtype} {seed}"
    if device != "cpu":
        text += f" {device}"
    return hashlib.sha256(text.encode()).hexdigest()


def _fill_normal(matrix: torch.Tensor, deviation: float, generator: torch.Generator) -> None:
    """Fills a contiguous tensor chunk by chunk: a matrix in float32 would be twice the memory."""
    flat = matrix.view(-1)
    chunk = torch.empty(min(_CHUNK, flat.numel()), device=matrix.device)
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK]
        part.copy_(chunk[: part.numel()].normal_(0.0, deviation, generator=generator))
