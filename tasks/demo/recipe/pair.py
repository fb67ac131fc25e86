"""What the pair looks like: shapes, tokenizer, configurations, and the files vLLM reads."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tasks.demo.recipe.corpus import CHAT_TEMPLATE, END_OF_TEXT, IM_END, IM_START, MASK, PAD, REGIMES

VOCAB_SIZE = 1536
HIDDEN_SIZE = 256
INTERMEDIATE_SIZE = 512
NUM_ATTENTION_HEADS = 4
NUM_KEY_VALUE_HEADS = 2
HEAD_DIM = 64
RMS_NORM_EPS = 1e-6
ROPE_THETA = 10_000.0
MAX_POSITION_EMBEDDINGS = 1024

TRAINED_POSITIONS = 256
"""Rows of this many tokens are trained on; later positions run, but were never seen."""

NUM_TARGET_LAYERS = 4
NUM_DRAFTER_LAYERS = 2
BLOCK_SIZE = 16
"""Positions of one draft pass: the last accepted token and 15 masked ones."""
TARGET_LAYER_IDS = (0, 2, 3)
"""Target layers whose outputs the drafter reads, counted from 0 (vLLM adds 1: it counts inputs of layers)."""

_SHAPE_CONFIG: tuple[tuple[str, int], ...] = (
    ("vocab_size", VOCAB_SIZE),
    ("hidden_size", HIDDEN_SIZE),
    ("intermediate_size", INTERMEDIATE_SIZE),
    ("num_attention_heads", NUM_ATTENTION_HEADS),
    ("num_key_value_heads", NUM_KEY_VALUE_HEADS),
    ("head_dim", HEAD_DIM),
    ("max_position_embeddings", MAX_POSITION_EMBEDDINGS),
)


def train_tokenizer(num_documents: int = 6000, seed: int = 1) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits, trained on `num_documents` turns of the corpus, a third of each regime."""
    rng = random.Random(seed)
    regimes = list(REGIMES.values())
    texts = [text for i in range(num_documents) for text in regimes[i % len(regimes)](rng)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT, IM_START, IM_END, PAD, MASK],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=PAD,
        bos_token=None,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITION_EMBEDDINGS,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def target_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        **dict(_SHAPE_CONFIG),
        num_hidden_layers=NUM_TARGET_LAYERS,
        rms_norm_eps=RMS_NORM_EPS,
        rope_theta=ROPE_THETA,
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        dtype="bfloat16",
        architectures=["Qwen3ForCausalLM"],
    )


def drafter_config(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The drafter's config.json, in the form vLLM's `DFlashDraftModel` reads."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        **dict(_SHAPE_CONFIG),
        "num_hidden_layers": NUM_DRAFTER_LAYERS,
        "hidden_act": "silu",
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "block_size": BLOCK_SIZE,
        "num_target_layers": NUM_TARGET_LAYERS,
        "dflash_config": {
            "mask_token_id": tokenizer.convert_tokens_to_ids(MASK),
            "target_layer_ids": list(TARGET_LAYER_IDS),
        },
    }


def save_target(folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes the target in bfloat16 with its tokenizer and chat template; `model` is converted in place."""
    model.to(torch.bfloat16).eval()
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_drafter(folder: Path, state: dict[str, torch.Tensor], tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes the drafter in bfloat16. It has no tokenizer, embedding or head of its own: vLLM lends it the target's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(drafter_config(tokenizer), indent=2) + "\n")
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
