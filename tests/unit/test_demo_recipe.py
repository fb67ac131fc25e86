"""The training recipe, run for a few steps, and the pieces of it that make the drafter work."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tasks import demo
from tasks.demo.recipe.bf16 import read_bf16

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoTokenizer, Qwen3ForCausalLM  # noqa: E402

from tasks.demo.recipe.__main__ import Recipe, make_pair  # noqa: E402
from tasks.demo.recipe.dflash_model import DFlash, new_drafter  # noqa: E402
from tasks.demo.recipe.draft_blocks import IGNORED, block_mask, cut_blocks  # noqa: E402
from tasks.demo.recipe.pair import BLOCK_SIZE  # noqa: E402
from tasks.demo.recipe.rollout import RolloutConfig, roll_out  # noqa: E402
from tasks.demo.recipe.train_drafter import DrafterTraining, TargetFeatures, draft_loss  # noqa: E402
from tasks.demo.recipe.train_target import TargetTraining  # noqa: E402
