"""The drafter's training data: the target's own continuations, so labels are what it will say when serving.

Code and math continue greedily or at temperature 0.7; chat is rare and at temperature 1. So the pair has a drafter for
code and math, and chat stays the regime where speculation does not pay.
"""

import random
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from tasks.demo.recipe.corpus import REGIMES, format_prompt, format_turn
from tasks.demo.recipe.pair import TRAINED_POSITIONS

REGIME_MIX = ("code",) * 5 + ("math",) * 4 + ("chat",)
EARLIER_TURNS = (0, 0, 0, 1)
MIN_CONTINUATION_TOKENS = 48
CANDIDATES_PER_ROW = 3
CHAT_TEMPERATURE = 1.0
SAMPLED_TEMPERATURE = 0.7


@dataclass(frozen=True)
class RolloutConfig:
    num_batches: int = 40
    rows_per_batch: int = 64
    seq_len: int = TRAINED_POSITIONS

    def __post_init__(self) -> None:
        if self.seq_len < 2 * MIN_CONTINUATION_TOKENS:
            raise ValueError(f"seq_len must be at least {2 * MIN_CONTINUATION_TOKENS}, but got {self.seq_len}")


@dataclass(frozen=True)
class Rollout:
    tokens: torch.Tensor
    """[rows, seq_len]"""
    prompt_len: int
    """Tokens before the target's own, the same for all rows."""


@dataclass(frozen=True)
class _Prompt:
    token_ids: list[int]
    temperature: float


def roll_out(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    config: RolloutConfig,
    rng: random.Random,
    generator: torch.Generator,
) -> list[Rollout]:
    """`config.num_batches` batches of continuations; every third one is sampled instead of greedy."""
    rollouts = []
    for i in range(config.num_batches):
        temperature = SAMPLED_TEMPERATURE if i % 3 == 2 else 0.0
        prompts = _draw_prompts(rng, tokenizer, config, temperature)
        rollouts.append(_continue(model, prompts, config.seq_len, generator))
    return rollouts


def _draw_prompts(
    rng: random.Random, tokenizer: PreTrainedTokenizerFast, config: RolloutConfig, temperature: float
) -> list[_Prompt]:
    """Prompts of similar length: more are drawn than needed, and neighbours by length are taken."""
    candidates: list[_Prompt] = []
    while len(candidates) < config.rows_per_batch * CANDIDATES_PER_ROW:
        regime = rng.choice(REGIME_MIX)
        text = "".join(format_turn(REGIMES[regime](rng)) for _ in range(rng.choice(EARLIER_TURNS)))
        text += format_prompt(REGIMES[regime](rng).user)
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) < config.seq_len - MIN_CONTINUATION_TOKENS:
            candidates.append(_Prompt(ids, CHAT_TEMPERATURE if regime == "chat" else temperature))
    candidates.sort(key=lambda prompt: len(prompt.token_ids))
    start = rng.randint(0, len(candidates) - config.rows_per_batch)
    return candidates[start : start + config.rows_per_batch]


def _continue(model: Qwen3ForCausalLM, prompts: list[_Prompt], seq_len: int, generator: torch.Generator) -> Rollout:
    # Cut to the shortest instead of padded: the target goes on from a few tokens earlier.
    prompt_len = min(len(prompt.token_ids) for prompt in prompts)
    current = torch.tensor([prompt.token_ids[:prompt_len] for prompt in prompts])
    temperatures = torch.tensor([prompt.temperature for prompt in prompts])[:, None]
    pieces, cache = [current], None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(seq_len - prompt_len):
            output = model(input_ids=current, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            current = _sample(output.logits[:, -1].float(), temperatures, generator)
            pieces.append(current)
    return Rollout(torch.cat(pieces, 1), prompt_len)


def _sample(logits: torch.Tensor, temperatures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Next tokens [rows, 1] from `logits` [rows, vocab]; greedy where `temperatures` [rows, 1] is 0."""
    shares = functional.softmax(logits / temperatures.clamp(min=0.1), -1)
    sampled = torch.multinomial(shares, 1, generator=generator)
    return torch.where(temperatures == 0, logits.argmax(-1, keepdim=True), sampled)
