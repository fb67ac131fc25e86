"""Makes a whole pair: `python -m tasks.demo.recipe OUT [--steps 1500] [--rollout-batches 40] [--num-prompts 256]`."""

import argparse
import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from tasks.demo.recipe.corpus import REGIMES, format_prompt
from tasks.demo.recipe.pair import TRAINED_POSITIONS, save_drafter, save_target, train_tokenizer
from tasks.demo.recipe.prompts import draw_prompts, write_prompts
from tasks.demo.recipe.rollout import RolloutConfig
from tasks.demo.recipe.train_drafter import DrafterTraining, train_drafter
from tasks.demo.recipe.train_target import TargetTraining, train_target

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what comes out; the defaults are what the shipped pair was made with."""

    tokenizer_documents: int = 6000
    target: TargetTraining = field(default_factory=TargetTraining)
    drafter: DrafterTraining = field(default_factory=DrafterTraining)
    num_prompts: int = 256


def make_pair(out: Path, recipe: Recipe) -> None:
    """Writes `out`/target, `out`/dflash and `out`/prompts."""
    tokenizer = train_tokenizer(recipe.tokenizer_documents)
    target = train_target(tokenizer, recipe.target)
    save_target(out / "target", target, tokenizer)
    # Back to float32 from the saved bfloat16: the drafter learns the target that will be served.
    drafter = train_drafter(target.float(), tokenizer, recipe.drafter)
    save_drafter(out / "dflash", drafter.state_dict(), tokenizer)
    make_prompts(out / "prompts", tokenizer, recipe.num_prompts)


def make_prompts(folder: Path, tokenizer: PreTrainedTokenizerFast, num_prompts: int) -> None:
    """Writes `folder`/code.jsonl, math.jsonl and chat.jsonl."""

    def count_tokens(prompt: str) -> int:
        return len(tokenizer(format_prompt(prompt), add_special_tokens=False)["input_ids"])

    for regime in REGIMES:
        prompts = draw_prompts(regime, num_prompts, count_tokens, TRAINED_POSITIONS)
        write_prompts(folder / f"{regime}.jsonl", prompts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.demo.recipe", description="Make a demo pair from nothing.")
    parser.add_argument("out", type=Path, help="folder for target/, dflash/ and prompts/")
    parser.add_argument("--steps", type=int, default=1500, help="training steps of target and drafter each")
    parser.add_argument("--rollout-batches", type=int, default=40, help="batches of 64 rows the drafter learns from")
    parser.add_argument("--num-prompts", type=int, default=256, help="prompts per regime")
    parser.add_argument("--threads", type=int, default=None, help="torch threads")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    recipe = Recipe(
        target=TargetTraining(num_steps=arguments.steps),
        drafter=DrafterTraining(
            num_steps=arguments.steps, rollout=RolloutConfig(num_batches=arguments.rollout_batches)
        ),
        num_prompts=arguments.num_prompts,
    )
    make_pair(arguments.out, recipe)
    logger.info("pair written to %s", arguments.out)


if __name__ == "__main__":
    main()
