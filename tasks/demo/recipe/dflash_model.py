"""The DFlash drafter as a torch module, with the parameter names vLLM loads (`qwen3_dflash.py`).

One pass fills a whole block: its first position holds the last accepted token, the others the mask token. Queries come
from the block; keys and values from the block and, before it, from the target's hidden states (the context).
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from tasks.demo.recipe.pair import (
    HEAD_DIM,
    HIDDEN_SIZE,
    INTERMEDIATE_SIZE,
    NUM_ATTENTION_HEADS,
    NUM_DRAFTER_LAYERS,
    NUM_KEY_VALUE_HEADS,
    RMS_NORM_EPS,
    ROPE_THETA,
    TARGET_LAYER_IDS,
)


class _Module(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy here; said once, for all modules below
    pass


@dataclass(frozen=True)
class AttentionPlan:
    """Where queries and keys sit and who sees whom; Q query positions, C context positions."""

    query_positions: torch.Tensor
    """[batch, Q]"""
    context_positions: torch.Tensor
    """[batch, C]"""
    mask: torch.Tensor
    """[batch, Q, C + Q], True where the query sees the key; context first, then the block's own positions."""


class RMSNorm(_Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + RMS_NORM_EPS) * self.weight


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, NeoX layout: `x` [batch, heads, S, HEAD_DIM], `positions` [batch, S]."""
    frequencies = 1.0 / ROPE_THETA ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angles = positions[:, None, :, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _split_heads(x: torch.Tensor) -> torch.Tensor:
    """[batch, S, heads * HEAD_DIM] -> [batch, heads, S, HEAD_DIM]"""
    return x.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)


class Attention(_Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN_SIZE, NUM_ATTENTION_HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN_SIZE, NUM_KEY_VALUE_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN_SIZE, NUM_KEY_VALUE_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(NUM_ATTENTION_HEADS * HEAD_DIM, HIDDEN_SIZE, bias=False)
        self.q_norm, self.k_norm = RMSNorm(HEAD_DIM), RMSNorm(HEAD_DIM)

    def forward(self, x: torch.Tensor, context: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """`x` [batch, Q, HIDDEN_SIZE] and `context` [batch, C, HIDDEN_SIZE] -> [batch, Q, HIDDEN_SIZE]"""
        query = rotate(self.q_norm(_split_heads(self.q_proj(x))), plan.query_positions)
        keys = (self._keys(context, plan.context_positions), self._keys(x, plan.query_positions))
        values = (_split_heads(self.v_proj(context)), _split_heads(self.v_proj(x)))
        group = NUM_ATTENTION_HEADS // NUM_KEY_VALUE_HEADS
        key, value = (torch.cat(both, 2).repeat_interleave(group, 1) for both in (keys, values))
        mask = plan.mask[:, None]
        out = functional.scaled_dot_product_attention(query.to(value.dtype), key.to(value.dtype), value, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _keys(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return rotate(self.k_norm(_split_heads(self.k_proj(x))), positions)


class MLP(_Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN_SIZE, INTERMEDIATE_SIZE, bias=False)
        self.up_proj = nn.Linear(HIDDEN_SIZE, INTERMEDIATE_SIZE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE_SIZE, HIDDEN_SIZE, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(_Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), MLP()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(HIDDEN_SIZE), RMSNorm(HIDDEN_SIZE)

    def forward(self, x: torch.Tensor, context: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, plan)
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlash(_Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(HIDDEN_SIZE * len(TARGET_LAYER_IDS), HIDDEN_SIZE, bias=False)
        self.hidden_norm, self.norm = RMSNorm(HIDDEN_SIZE), RMSNorm(HIDDEN_SIZE)
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_DRAFTER_LAYERS))

    def forward(self, features: torch.Tensor, embedded: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """Final hidden states of the block positions, [batch, Q, HIDDEN_SIZE].

        Args:
            features: outputs of the target's `TARGET_LAYER_IDS`, [batch, C, HIDDEN_SIZE * len(TARGET_LAYER_IDS)].
            embedded: the blocks' tokens under the target's embedding, [batch, Q, HIDDEN_SIZE].
            plan: positions and mask.
        """
        context = self.hidden_norm(self.fc(features))
        x = embedded
        for layer in self.layers:
            x = layer(x, context, plan)
        return self.norm(x)


def new_drafter(generator: torch.Generator) -> DFlash:
    """Untrained: matrices normal with deviation 0.02, norms one."""
    drafter = DFlash()
    for parameter in drafter.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02, generator=generator)
    return drafter
