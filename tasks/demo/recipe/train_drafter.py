"""Trains the DFlash drafter against the frozen target."""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from tasks.demo.recipe.corpus import MASK
from tasks.demo.recipe.dflash_model import DFlash, new_drafter
from tasks.demo.recipe.draft_blocks import IGNORED, DraftBlocks, cut_blocks
from tasks.demo.recipe.optim import adamw, descend, learning_rate
from tasks.demo.recipe.pair import TARGET_LAYER_IDS
from tasks.demo.recipe.rollout import RolloutConfig, roll_out

logger = logging.getLogger(__name__)

WEIGHT_DECAY = 0.01
LOG_EVERY_STEPS = 50


@dataclass(frozen=True)
class DrafterTraining:
    num_steps: int = 1500
    batch_size: int = 8
    blocks_per_row: int = 12
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    seed: int = 23


class TargetFeatures:
    """Reads what the drafter is fed: the raw outputs of the target's `TARGET_LAYER_IDS`.

    Hooks, not `output_hidden_states`: the last of those is after the final norm, while vLLM hands over the value
    before it.
    """

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        self._model = model
        self._outputs: dict[int, object] = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        for layer_id in TARGET_LAYER_IDS:
            self._handles.append(self._model.model.layers[layer_id].register_forward_hook(self._keep(layer_id)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """[batch, T] -> [batch, T, HIDDEN_SIZE * len(TARGET_LAYER_IDS)], float32."""
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            self._model.model(input_ids=tokens)
        return torch.cat([self._outputs[layer_id] for layer_id in TARGET_LAYER_IDS], -1).float()

    def _keep(self, layer_id: int) -> Callable[[torch.nn.Module, object, object], None]:
        def hook(module: torch.nn.Module, inputs: object, output: object) -> None:
            self._outputs[layer_id] = output[0] if isinstance(output, tuple) else output

        return hook


def train_drafter(target: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, training: DrafterTraining) -> DFlash:
    """The trained drafter, in float32. `target` is not changed, only put into evaluation mode and frozen.

    Args:
        target: the target as it will be served, its weights rounded to bfloat16 but held in float32.
        tokenizer: the pair's tokenizer.
        training: sizes, steps and seed.
    """
    target.eval().requires_grad_(False)
    rng, generator = random.Random(training.seed), torch.Generator().manual_seed(training.seed)
    rollouts = roll_out(target, tokenizer, training.rollout, rng, generator)
    drafter = new_drafter(generator)
    optimiser = adamw(drafter, WEIGHT_DECAY)
    embedding = target.model.embed_tokens.weight
    mask_token_id = tokenizer.convert_tokens_to_ids(MASK)
    with TargetFeatures(target) as features:
        for step in range(training.num_steps):
            rollout = rng.choice(rollouts)
            rows = torch.randperm(len(rollout.tokens), generator=generator)[: training.batch_size]
            tokens = rollout.tokens[rows]
            blocks = cut_blocks(tokens, rollout.prompt_len, training.blocks_per_row, mask_token_id, generator)
            loss = draft_loss(drafter, features.of(tokens), blocks, embedding)
            descend(drafter, optimiser, loss, learning_rate(step, training.num_steps))
            if (step + 1) % LOG_EVERY_STEPS == 0:
                logger.info("drafter: step %d of %d, loss %.3f", step + 1, training.num_steps, loss.item())
    return drafter


def draft_loss(drafter: DFlash, features: torch.Tensor, blocks: DraftBlocks, embedding: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the drafted tokens, averaged with the blocks' weights.

    Args:
        drafter: the model to train.
        features: the target's hidden states, [batch, T, HIDDEN_SIZE * len(TARGET_LAYER_IDS)].
        blocks: what to draft, with labels.
        embedding: the target's embedding, also its head, [VOCAB_SIZE, HIDDEN_SIZE].
    """
    counted = blocks.labels != IGNORED
    with torch.autocast("cpu", torch.bfloat16):
        hidden = drafter(features, functional.embedding(blocks.token_ids, embedding), blocks.plan)
        logits = hidden[counted] @ embedding.t()
    losses = functional.cross_entropy(logits.float(), blocks.labels[counted], reduction="none")
    weights = blocks.loss_weights[counted]
    return (losses * weights).sum() / weights.sum()
