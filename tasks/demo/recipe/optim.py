"""The optimiser and learning rate that target and drafter are trained with."""

import math

import torch
from torch import nn

PEAK_LR = 3e-3
FINAL_LR_SHARE = 0.05
WARMUP_STEPS = 50
MAX_GRAD_NORM = 1.0


def adamw(model: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with decay on matrices only, not on norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95))


def learning_rate(step: int, num_steps: int) -> float:
    """Linear warm-up, then a cosine from `PEAK_LR` down to `FINAL_LR_SHARE` of it; `step` counts from 0."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / num_steps))
    return PEAK_LR * min(1.0, (step + 1) / WARMUP_STEPS) * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * cosine)


def descend(model: nn.Module, optimiser: torch.optim.AdamW, loss: torch.Tensor, lr: float) -> None:
    """One clipped step along the gradient of `loss`."""
    for group in optimiser.param_groups:
        group["lr"] = lr
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimiser.step()
