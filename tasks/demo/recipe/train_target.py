"""Trains the small Qwen3 target on the synthetic corpus."""

import logging
import random
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from tasks.demo.recipe.corpus import REGIMES, format_turn
from tasks.demo.recipe.optim import adamw, descend, learning_rate
from tasks.demo.recipe.pair import TRAINED_POSITIONS, target_config

logger = logging.getLogger(__name__)

REGIME_MIX = ("code", "code", "math", "chat", "chat")
WEIGHT_DECAY = 0.05
LOG_EVERY_STEPS = 25


@dataclass(frozen=True)
class TargetTraining:
    num_steps: int = 1500
    batch_size: int = 16
    seq_len: int = TRAINED_POSITIONS
    seed: int = 11


def train_target(tokenizer: PreTrainedTokenizerFast, training: TargetTraining) -> Qwen3ForCausalLM:
    """The trained target, in float32."""
    rng = random.Random(training.seed)
    with torch.random.fork_rng():  # transformers draws initial weights from the global generator
        torch.manual_seed(training.seed)
        model = Qwen3ForCausalLM(target_config(tokenizer)).float().train()
    optimiser = adamw(model, WEIGHT_DECAY)
    for step in range(training.num_steps):
        rows = [_row(rng, tokenizer, training.seq_len + 1) for _ in range(training.batch_size)]
        loss = _loss(model, torch.tensor(rows))
        descend(model, optimiser, loss, learning_rate(step, training.num_steps))
        if (step + 1) % LOG_EVERY_STEPS == 0:
            logger.info("target: step %d of %d, loss %.3f", step + 1, training.num_steps, loss.item())
    return model


def _row(rng: random.Random, tokenizer: PreTrainedTokenizerFast, length: int) -> list[int]:
    """`length` tokens of turns of one regime, one after the other, the last one cut."""
    regime = REGIMES[rng.choice(REGIME_MIX)]
    ids: list[int] = []
    while len(ids) < length:
        ids += tokenizer(format_turn(regime(rng)), add_special_tokens=False)["input_ids"]
    return ids[:length]


def _loss(model: Qwen3ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross entropy of `tokens` [batch, seq_len + 1]."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=tokens[:, :-1]).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
