"""Untrained checkpoints around the demo target, in the form vLLM loads: they show that a method runs, not that it pays.

Every matrix is drawn from a seed, so next to nothing that such a drafter proposes is accepted.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tasks.demo import resolve_model
from tasks.demo.recipe.pair import (
    BLOCK_SIZE,
    HEAD_DIM,
    HIDDEN_SIZE,
    INTERMEDIATE_SIZE,
    MAX_POSITION_EMBEDDINGS,
    NUM_ATTENTION_HEADS,
    NUM_KEY_VALUE_HEADS,
    NUM_TARGET_LAYERS,
    RMS_NORM_EPS,
    ROPE_THETA,
    TARGET_LAYER_IDS,
    VOCAB_SIZE,
)

MASK_TOKEN_ID = 4
"""Of the demo target's tokenizer, as in the shipped drafter's config.json."""
DSPARK_BLOCK_SIZE = 7
_RANK = 32
"""Of the low-rank heads that DFlash 2 and DSpark put on top."""

Tensors = dict[str, torch.Tensor]


def save_eagle3(folder: Path) -> None:
    """An EAGLE-3 head of one layer (`Eagle3Qwen3ForCausalLM`); embedding and output head are the target's."""
    tensors = {
        "fc.weight": (HIDDEN_SIZE, 3 * HIDDEN_SIZE),
        "midlayer.hidden_norm.weight": (HIDDEN_SIZE,),
        **_layer("midlayer.", attention_input=2 * HIDDEN_SIZE),
        "norm.weight": (HIDDEN_SIZE,),
        "lm_head.weight": (VOCAB_SIZE, HIDDEN_SIZE),
    }
    # vLLM's own choice of layers, (2, n / 2, n - 3), repeats itself in a target of four.
    config = {"architectures": ["Eagle3Qwen3ForCausalLM"], "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    _save(folder, config | {"num_hidden_layers": 1}, tensors)


def save_dflash2(folder: Path) -> None:
    """A DFlash 2 drafter (`DFlash2DraftModel`): DFlash with short convolutions and a candidate selector."""
    taps, group = 4, 64
    kernels = 2 * taps * (HIDDEN_SIZE // group)
    convolutions = {
        f"layers.0.{part}_conv.{name}": shape
        for part in ("attention", "mlp")
        for name, shape in {
            "base_kernel": (2, taps, HIDDEN_SIZE),
            "kernel_projection.weight": (kernels, HIDDEN_SIZE),
        }.items()
    }
    selector = {
        "candidate_selector.predecessor_codebook": (VOCAB_SIZE, _RANK),
        "candidate_selector.successor_codebook": (VOCAB_SIZE, _RANK),
        "candidate_selector.hidden_projection.weight": (_RANK, HIDDEN_SIZE),
    }
    own = {"conv_kernel_size": taps, "conv_group_size": group, "selector_rank": _RANK, "selector_top_k": 4}
    _save(folder, _block_drafter("DFlash2DraftModel", BLOCK_SIZE, own), _backbone() | convolutions | selector)


def save_dspark(folder: Path) -> None:
    """A DSpark drafter (`Qwen3DSparkModel`): DFlash's backbone with a low-rank Markov head over the vocabulary."""
    markov = {
        "markov_head.markov_w1.weight": (VOCAB_SIZE, _RANK),
        "markov_head.markov_w2.weight": (VOCAB_SIZE, _RANK),
    }
    config = _block_drafter("Qwen3DSparkModel", DSPARK_BLOCK_SIZE, {}) | {
        "markov_rank": _RANK,
        "markov_head_type": "vanilla",
    }
    _save(folder, config, _backbone() | markov)


def save_mtp_target(folder: Path) -> None:
    """A target with one multi-token-prediction layer (`MiMoForCausalLM`) under the demo target's tokenizer."""
    bias = {"q": NUM_ATTENTION_HEADS, "k": NUM_KEY_VALUE_HEADS, "v": NUM_KEY_VALUE_HEADS}
    layers: dict[str, tuple[int, ...]] = {}
    for prefix in ("model.layers.0.", "model.mtp_layers.0."):
        layers |= _layer(prefix, attention_input=HIDDEN_SIZE, has_head_norms=False)
        layers |= {f"{prefix}self_attn.{name}_proj.bias": (heads * HEAD_DIM,) for name, heads in bias.items()}
    tensors = {
        "model.embed_tokens.weight": (VOCAB_SIZE, HIDDEN_SIZE),
        "lm_head.weight": (VOCAB_SIZE, HIDDEN_SIZE),
        "model.norm.weight": (HIDDEN_SIZE,),
        "model.mtp_layers.0.input_proj.weight": (HIDDEN_SIZE, 2 * HIDDEN_SIZE),
        **{
            f"model.mtp_layers.0.{name}.weight": (HIDDEN_SIZE,)
            for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")
        },
        **layers,
    }
    config = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 1}
    _save(folder, config | {"num_nextn_predict_layers": 1, "eos_token_id": 2}, tensors)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(Path(resolve_model("demo://target")) / name, folder / name)


def _block_drafter(architecture: str, block_size: int, own: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "num_hidden_layers": 1,
        "block_size": block_size,
        "num_target_layers": NUM_TARGET_LAYERS,
        "dflash_config": {"mask_token_id": MASK_TOKEN_ID, "target_layer_ids": list(TARGET_LAYER_IDS), **own},
    }


def _backbone() -> dict[str, tuple[int, ...]]:
    return {
        "fc.weight": (HIDDEN_SIZE, HIDDEN_SIZE * len(TARGET_LAYER_IDS)),
        "hidden_norm.weight": (HIDDEN_SIZE,),
        "norm.weight": (HIDDEN_SIZE,),
        **_layer("layers.0.", attention_input=HIDDEN_SIZE),
    }


def _layer(prefix: str, *, attention_input: int, has_head_norms: bool = True) -> dict[str, tuple[int, ...]]:
    queries, keys = NUM_ATTENTION_HEADS * HEAD_DIM, NUM_KEY_VALUE_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, attention_input),
        "self_attn.k_proj.weight": (keys, attention_input),
        "self_attn.v_proj.weight": (keys, attention_input),
        "self_attn.o_proj.weight": (HIDDEN_SIZE, queries),
        "mlp.gate_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "mlp.up_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "mlp.down_proj.weight": (HIDDEN_SIZE, INTERMEDIATE_SIZE),
        "input_layernorm.weight": (HIDDEN_SIZE,),
        "post_attention_layernorm.weight": (HIDDEN_SIZE,),
    }
    if has_head_norms:
        shapes |= {"self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,)}
    return {prefix + name: shape for name, shape in shapes.items()}


def _save(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Vectors are ones (norms) or zeros (biases), everything else normal with deviation 0.02."""
    folder.mkdir(parents=True, exist_ok=True)
    common = {
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_attention_heads": NUM_ATTENTION_HEADS,
        "num_key_value_heads": NUM_KEY_VALUE_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(common | dict(config), indent=2) + "\n")
    generator = torch.Generator().manual_seed(0)
    tensors: Tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensors[name] = torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        else:
            tensors[name] = torch.empty(shape).normal_(std=0.02, generator=generator)
    packed = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
