"""The only file that knows how a transformers decoder layer is called.

Written for transformers 5.17 to 5.24: the layer's cache argument is `past_key_values` before and
`cache` from 5.24 on, and 5.17 swallows the new name without an error. So the name is read from
the signature, and a trial run checks that every layer updates the cache exactly once.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

from river_llm.errors import UserError
from river_llm.models import attention
from river_llm.models.head import Head

ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", "ministral3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")
"""Rotary embeddings with one set of frequencies for every text that fits :func:`context_of`."""

Rotary = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, each [B, T, R] (or [S, R] as a table); R: rotated dimensions of a head."""


class LayerCache(Protocol):
    """What a decoder layer needs of a cache."""

    def update(
        self, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class BackboneAdapter:
    """Drives the decoder layers of a transformers causal language model one by one.

    Args:
        model: a model in evaluation mode; its attention implementation is set to this project's.

    Attributes:
        model: the transformers model.
        layers: its L decoder layers.
        head: its final norm and LM head.
        num_layers, hidden_size, kv_heads, head_dim, vocab_size: sizes.
        context: longest text that the model is run on, see :func:`context_of`.
        query_switch: position from which on queries are scaled (Ministral 3); None: never.
        dtype, device: of the weights.

    Raises:
        UserError: an architecture, layer type or rotary embedding that is not known to work.
        RuntimeError: a layer that does not update the cache exactly once (a transformers version
            that this file does not know).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        check_supported(config)
        self.model = model
        model.set_attn_implementation(attention.NAME)
        decoder: Any = model.model
        self.layers: list[nn.Module] = list(decoder.layers)
        self.num_layers = len(self.layers)
        self.hidden_size = int(config.hidden_size)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_dim = int(decoder.layers[0].self_attn.head_dim)
        self.vocab_size = int(config.vocab_size)
        self.context = context_of(config)
        rope = config.rope_parameters or {}
        self._query_growth: float | None = rope.get("llama_4_scaling_beta")
        self.query_switch: int | None = (
            None if self._query_growth is None else int(rope["original_max_position_embeddings"])
        )
        self._first_position = 0
        self._embedding: nn.Module = decoder.embed_tokens
        self.head = Head(decoder.norm, model.lm_head)
        self._rotary: Any = decoder.rotary_emb
        weight = decoder.embed_tokens.weight
        self.dtype: torch.dtype = weight.dtype
        self.device: torch.device = weight.device
        self._cache_argument = _cache_argument(type(self.layers[0]))
        self._check_updates()

    @property
    def embedding_weight(self) -> torch.Tensor:
        """[V, H], the rows that :meth:`embed` picks."""
        weight: torch.Tensor = self._embedding.weight  # type: ignore[assignment]
        return weight

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [B, T] to hidden states [B, T, H]."""
        out: torch.Tensor = self._embedding(ids)
        return out

    @property
    def context_words(self) -> str:
        """The context and what limits it, for messages."""
        if self.context < int(self.model.config.max_position_embeddings):
            return (
                f"the model's {self.context} positions with one set of rotary frequencies "
                "(longrope switches there)"
            )
        return f"the model's {self.context} positions"

    def shifted(self, first: int) -> BackboneAdapter:
        """The same model at positions that begin with `first` instead of 0, for checks."""
        other = copy.copy(self)
        other._first_position = first
        return other

    def rotary_table(self, length: int) -> Rotary:
        """Cos and sin for positions 0..length-1, each [length, R].

        Raises:
            UserError: longer than the context. Frequencies of `longrope` would change there, and
                with them those of positions whose keys are cached already.
        """
        last = self._first_position + length
        if last > self.context:
            raise UserError(f"{last} positions exceed {self.context_words}")
        positions = torch.arange(self._first_position, last, device=self.device)[None]
        probe = torch.empty(1, 1, 1, dtype=self.dtype, device=self.device)
        cos, sin = self._rotary(probe, positions)
        return cos[0], sin[0]

    def query_scales(self, length: int) -> torch.Tensor | None:
        """What queries are multiplied by at positions 0..length-1, in the model's dtype [length].

        None: by nothing. Ministral 3 counters the flattening of attention over long texts so, in
        steps of `original_max_position_embeddings`.
        """
        if self._query_growth is None:
            return None
        first = self._first_position
        positions = torch.arange(first, first + length, device=self.device)[None]
        scales: torch.Tensor = get_llama_4_attn_scale(
            positions, self._query_growth, self.query_switch
        )
        return scales.to(self.dtype).flatten()

    def run_layer(
        self,
        layer: nn.Module,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        rotary: Rotary,
        cache: LayerCache,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One decoder layer of the backbone, or of a river with the same architecture.

        Args:
            layer: the decoder layer.
            hidden: [B, T, H].
            mask: see :func:`river_llm.models.attention.attend`.
            rotary: cos and sin at the tokens' positions, [B, T, R].
            cache: written and read once.
            positions: of the tokens, long [B, T]; needed where queries are scaled by position
                (transformers' layer fails without them there).

        Returns:
            [B, T, H].
        """
        if positions is not None and self._first_position:
            positions = positions + self._first_position
        out = layer(
            hidden,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=rotary,
            use_cache=True,
            **{self._cache_argument: cache},
        )
        result: torch.Tensor = out[0] if isinstance(out, tuple) else out
        return result

    def project_kv(
        self, layer: nn.Module, hidden: torch.Tensor, rotary: Rotary, cache: LayerCache
    ) -> None:
        """Writes a layer's keys and values for given states and runs nothing else of it.

        Args:
            layer: the decoder layer; its own input norm and k/v projections are applied.
            hidden: [B, T, H].
            rotary: cos and sin at the tokens' positions, [B, T, R].
            cache: written once.
        """
        attn: Any = layer.self_attn
        normed = layer.input_layernorm(hidden)  # type: ignore[operator]
        heads = (*normed.shape[:-1], self.kv_heads, self.head_dim)
        if hasattr(attn, "qkv_proj"):
            width = self.kv_heads * self.head_dim
            weight, bias = attn.qkv_proj.weight, attn.qkv_proj.bias
            both = functional.linear(
                normed, weight[-2 * width :], None if bias is None else bias[-2 * width :]
            )
            k, v = (part.view(heads) for part in both.split(width, dim=-1))
        else:
            k, v = attn.k_proj(normed).view(heads), attn.v_proj(normed).view(heads)
        if hasattr(attn, "k_norm"):
            k = attn.k_norm(k)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        cos, sin = rotary[0].unsqueeze(1), rotary[1].unsqueeze(1)
        width = cos.shape[-1]
        turning, kept = k[..., :width], k[..., width:]
        first, second = turning.chunk(2, dim=-1)
        turned = turning * cos + torch.cat((-second, first), dim=-1) * sin
        cache.update(torch.cat((turned, kept), dim=-1) if width < self.head_dim else turned, v)

    def linears(self, layer: int) -> dict[str, nn.Linear]:
        """The linears of attention and FFN of a layer, by their name inside it."""
        return {
            name: module
            for name, module in self.layers[layer].named_modules()
            if isinstance(module, nn.Linear)
        }

    def propagation_nbytes(self, layer: int) -> int:
        """Bytes of the weights that :meth:`project_kv` reads, norm and biases aside."""
        columns = self.hidden_size
        return 2 * self.kv_heads * self.head_dim * columns * self.dtype.itemsize

    def rebuild_layer(self, layer: int, replacement: Callable[[str], nn.Module]) -> nn.Module:
        """A decoder layer like `layer` with other linears and everything else shared.

        Args:
            layer: index of the backbone layer.
            replacement: name of a linear inside the layer -> the module that takes its place.

        Returns:
            A new module; norms and every other module without children are the backbone's own.
        """
        original = self.layers[layer]
        # deepcopy takes what its memo already holds instead of copying it.
        memo: dict[int, Any] = {id(self.model.config): self.model.config}
        for name, module in original.named_modules():
            if isinstance(module, nn.Linear):
                memo[id(module)] = replacement(name)
            elif not list(module.children()):
                memo[id(module)] = module
        rebuilt: nn.Module = copy.deepcopy(original, memo)
        return rebuilt

    def shared_nbytes(self) -> int:
        """Bytes of what backbone and river share: embedding, norms, head (tied: once)."""
        linears = {
            id(parameter)
            for layer in range(self.num_layers)
            for linear in self.linears(layer).values()
            for parameter in linear.parameters()
        }
        return sum(p.nbytes for p in self.model.parameters() if id(p) not in linears)

    def untied_head_nbytes(self) -> int:
        """Bytes of the LM head beside the embedding; 0 where it is the embedding."""
        weight = self.head.linear.get_parameter("weight")
        return 0 if weight is self._embedding.weight else weight.nbytes

    @torch.no_grad()
    def generate_forced(self, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Logits of transformers' own `generate` (sdpa) while it is fed given tokens.

        Args:
            prompt: token ids.
            tokens: n token ids that are emitted whatever the model prefers.

        Returns:
            [n, V], the logits at each of them.
        """
        ids = torch.tensor([list(prompt)], device=self.device)
        settings = GenerationConfig(
            max_new_tokens=len(tokens),
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        # A checkpoint's own settings (end tokens, beams, penalties) would fill what is left open.
        own = self.model.generation_config
        self.model.generation_config = GenerationConfig()
        self.model.set_attn_implementation("sdpa")
        try:
            out: Any = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=settings,
                logits_processor=LogitsProcessorList([_Force(len(prompt), tokens)]),
            )
        finally:
            self.model.set_attn_implementation(attention.NAME)
            self.model.generation_config = own
        return torch.cat(out.logits)

    def _check_updates(self) -> None:
        cos, sin = self.rotary_table(1)
        first = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        hidden = torch.zeros(1, 1, self.hidden_size, dtype=self.dtype, device=self.device)
        with torch.no_grad():
            for index, layer in enumerate(self.layers):
                probe = _CountingCache()
                self.run_layer(layer, hidden, None, (cos[None], sin[None]), probe, first)
                if probe.updates != 1:
                    raise RuntimeError(
                        f"decoder layer {index} updated the cache {probe.updates} times instead "
                        "of once: this transformers version is not supported"
                    )


class _Force(LogitsProcessor):
    """Leaves one token to choose at each step."""

    def __init__(self, prompt_length: int, tokens: Sequence[int]) -> None:
        self._prompt_length = prompt_length
        self._tokens = list(tokens)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._tokens[input_ids.shape[1] - self._prompt_length]] = 0.0
        return forced


class _CountingCache:
    def __init__(self) -> None:
        self.updates = 0

    def update(
        self, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.updates += 1
        return k, v


def check_supported(config: Any) -> None:
    """Refuses a model that the adapter does not know.

    Args:
        config: a transformers model configuration.

    Raises:
        UserError: architecture, layer types or rotary embedding not known to work.
    """
    if config.model_type not in ARCHITECTURES:
        raise UserError(
            f"architecture {config.model_type!r} is not known to the adapter: "
            f"use a model of {', '.join(ARCHITECTURES)}"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UserError(f"layer types {sorted(kinds)}: only full_attention layers are supported")
    if config.model_type in ("phi3", "ministral3"):
        # Here the window alone decides, without layer types.
        window = config.sliding_window
        if window is not None and window < config.max_position_embeddings:
            raise UserError(
                f"a sliding window of {window} in a context of {config.max_position_embeddings}: "
                "only full attention is supported"
            )
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in ROPE_TYPES:
        raise UserError(
            f"rotary embedding {rope!r} depends on the text's length: only "
            f"{', '.join(ROPE_TYPES)} are supported"
        )


def context_of(config: Any) -> int:
    """The longest text, prompt and generated tokens, that the adapter runs a model on.

    That is the model's own context, but with `longrope` (Phi-4-mini) the length at which its
    rotary frequencies switch. Transformers takes the frequencies by the length of the call: short
    ones up to `original_max_position_embeddings`, beyond it long ones for all positions, those of
    cached keys too; its `generate` drops the cache at that one token and runs the whole text
    again, a second prefill in the middle of decoding. A river whose keys the past tokens wrote at
    depths of their own would have to choose them once more, so a text stays below the switch.
    Texts that begin beyond it would be consistent, but no prompt of the benchmarks is that long.

    Args:
        config: a transformers model configuration.
    """
    context = int(config.max_position_embeddings)
    rope = config.rope_parameters or {}
    if rope.get("rope_type") == "longrope":
        return min(context, int(rope["original_max_position_embeddings"]))
    return context


def _cache_argument(layer_type: type[nn.Module]) -> str:
    parameters = inspect.signature(layer_type.forward).parameters
    for name in ("cache", "past_key_values"):
        if name in parameters:
            return name
    raise RuntimeError(f"{layer_type.__name__} takes no cache under a name known here")
