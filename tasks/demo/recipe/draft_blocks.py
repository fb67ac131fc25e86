"""Cuts rows of the target's tokens into the masked blocks a DFlash drafter learns from.

What the drafter meets when serving is kept: it drafts after any accepted token (random anchors), in blocks of
num_speculative_tokens + 1 positions (mixed block lengths), sees the target's hidden states of everything before the
anchor, and within its block every position sees every other (a mask that is not causal).
"""

from dataclasses import dataclass

import torch

from tasks.demo.recipe.dflash_model import AttentionPlan
from tasks.demo.recipe.pair import BLOCK_SIZE

IGNORED = -100
"""Label of positions that do not count."""
BLOCK_LENGTHS = (2, 4, 6, 8, 12, 16, 16, 16, 16)
"""Drawn with equal chance: short blocks are served too, full ones are the hardest."""
LOSS_DECAY_POSITIONS = 7.0
"""The weight falls by e over so many positions: a late token counts only if all before it are accepted."""


@dataclass(frozen=True)
class DraftBlocks:
    """Blocks of a batch of rows; Q = blocks per row * BLOCK_SIZE."""

    token_ids: torch.Tensor
    """[batch, Q]: the anchor's token at the start of each block, the mask token elsewhere."""
    labels: torch.Tensor
    """[batch, Q]: the target's token, or `IGNORED` (anchors, beyond the row, beyond the block's length)."""
    loss_weights: torch.Tensor
    """[batch, Q]"""
    plan: AttentionPlan


def cut_blocks(
    tokens: torch.Tensor, prompt_len: int, blocks_per_row: int, mask_token_id: int, generator: torch.Generator
) -> DraftBlocks:
    """Blocks with random anchors in the target's part of `tokens` [batch, T], which begins at `prompt_len`."""
    batch, num_tokens = tokens.shape
    anchors = _draw_anchors(batch, num_tokens, prompt_len, blocks_per_row, generator)
    offsets = torch.arange(BLOCK_SIZE)
    positions = (anchors[..., None] + offsets).flatten(1)
    known = torch.where(positions < num_tokens, tokens.gather(1, positions.clamp(max=num_tokens - 1)), IGNORED)
    is_anchor = (offsets == 0).repeat(blocks_per_row)[None]
    in_block = _draw_in_block(batch, blocks_per_row, generator)
    weights = torch.exp(-(offsets.float() - 1).clamp(min=0) / LOSS_DECAY_POSITIONS)
    context_positions = torch.arange(num_tokens)[None].expand(batch, -1)
    return DraftBlocks(
        token_ids=torch.where(is_anchor, known.clamp(min=0), mask_token_id),
        labels=torch.where(is_anchor | ~in_block, IGNORED, known),
        loss_weights=weights.repeat(blocks_per_row)[None].expand(batch, -1),
        plan=AttentionPlan(positions, context_positions, block_mask(anchors, num_tokens, in_block)),
    )


def block_mask(anchors: torch.Tensor, num_tokens: int, in_block: torch.Tensor) -> torch.Tensor:
    """Who sees whom, [batch, Q, num_tokens + Q].

    A position sees the context strictly before its anchor (the anchor is in the block itself) and the positions of its
    own block up to the block's length. Positions beyond the length see themselves too: a row of the mask without any
    key would make the softmax NaN, and gradients with it.

    Args:
        anchors: [batch, blocks].
        in_block: [batch, Q], whether the position is within the length drawn for its block.
    """
    num_blocks = anchors.shape[1]
    block_of = torch.arange(num_blocks).repeat_interleave(BLOCK_SIZE)
    sees_context = torch.arange(num_tokens) < anchors.repeat_interleave(BLOCK_SIZE, 1)[..., None]
    same_block = block_of[:, None] == block_of
    itself = torch.eye(num_blocks * BLOCK_SIZE, dtype=torch.bool)
    return torch.cat((sees_context, same_block & (in_block[:, None, :] | itself)), -1)


def _draw_anchors(
    batch: int, num_tokens: int, prompt_len: int, blocks_per_row: int, generator: torch.Generator
) -> torch.Tensor:
    """[batch, blocks]: distinct positions from `prompt_len` on, with at least one token after them."""
    choices = num_tokens - prompt_len - 1
    if choices < blocks_per_row:
        raise ValueError(f"{blocks_per_row} blocks a row need as many tokens after the prompt, but got {choices}")
    rows = [torch.randperm(choices, generator=generator)[:blocks_per_row] for _ in range(batch)]
    return torch.stack(rows) + prompt_len


def _draw_in_block(batch: int, blocks_per_row: int, generator: torch.Generator) -> torch.Tensor:
    """[batch, Q]: whether each position is within the length drawn for its block."""
    drawn = torch.randint(len(BLOCK_LENGTHS), (batch, blocks_per_row), generator=generator)
    lengths = torch.tensor(BLOCK_LENGTHS)[drawn].repeat_interleave(BLOCK_SIZE, 1)
    return torch.arange(BLOCK_SIZE).repeat(blocks_per_row)[None] < lengths
