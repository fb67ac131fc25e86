"""Prompts for the demo's workloads, from the grammar the pair was trained on."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from tasks.demo.recipe.corpus import REGIMES

OUTPUT_LEN = 128
"""The output length of the demo's workloads, tokens."""
MAX_DRAWS_PER_PROMPT = 50


def draw_prompts(
    regime: str, num_prompts: int, count_tokens: Callable[[str], int], max_tokens: int, seed: int = 777
) -> list[str]:
    """Distinct prompts of one regime that leave room for the output.

    Args:
        regime: a key of `REGIMES`.
        num_prompts: how many.
        count_tokens: tokens of a prompt with its chat template.
        max_tokens: prompt and `OUTPUT_LEN` output tokens together stay below this.
        seed: with the regime's name, what the draws depend on.

    Raises:
        ValueError: the grammar does not have that many.
    """
    rng = random.Random(f"{seed}-{regime}")
    prompts: dict[str, None] = {}
    for _ in range(num_prompts * MAX_DRAWS_PER_PROMPT):
        prompt = REGIMES[regime](rng).user
        if count_tokens(prompt) + OUTPUT_LEN < max_tokens:
            prompts[prompt] = None
        if len(prompts) == num_prompts:
            return list(prompts)
    raise ValueError(f"{regime}: asked for {num_prompts} distinct prompts, but got {len(prompts)}")


def write_prompts(path: Path, prompts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
