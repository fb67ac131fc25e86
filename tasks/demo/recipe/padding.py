"""Pads the target to many more weights that change nothing in its output.

The small target fits the caches of a CPU; the padded one has to be read from memory for every step, as real models
have. Needs numpy only, so that any node can do it.

Layers are made wider, none are added. A silent layer after the last one would do in exact arithmetic, but not in
vLLM: its fused add-and-norm normalises the unrounded sum of residual and layer output, and one more layer rounds that
sum to bfloat16 first. That flips near-ties: with 4 silent layers appended, 7 of 8 chat answers changed at
temperature 0.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.demo.recipe.bf16 import Bits, read_bf16, to_bf16, write_bf16

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


@dataclass(frozen=True)
class Padding:
    """How far to pad; the default gives the demo's target 99.5 M parameters."""

    intermediate_size: int = 32_000
    seed: int = 9
    std: float = 0.02
    """Deviation of the random weights, as in an untrained model."""
    version: int = 1
    """Raise it when `pad_target` writes other weights for the same sizes: cached copies are told apart by it."""


def pad_target(source: Path, out: Path, padding: Padding) -> int:
    """Writes the padded copy of the model in `source` to the folder `out`; returns its number of parameters.

    `gate_proj` and `up_proj` get random rows, `down_proj` zero columns for them: whatever the added units compute is
    multiplied by zero. Number and order of layers stay, so a drafter finds the hidden states it knows.

    Raises:
        ValueError: `padding` is narrower than the model, or the weights are not bfloat16.
    """
    config = json.loads((source / CONFIG).read_text())
    if padding.intermediate_size < config["intermediate_size"]:
        raise ValueError(
            f"intermediate_size must be at least the model's {config['intermediate_size']}, "
            f"but got {padding.intermediate_size}"
        )
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name not in (WEIGHTS, CONFIG):
            shutil.copyfile(path, out / path.name)
    rng = np.random.default_rng(padding.seed)
    tensors = {name: _widened(name, bits, padding, rng) for name, bits in read_bf16(source / WEIGHTS).items()}
    config["intermediate_size"] = padding.intermediate_size
    (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    write_bf16(out / WEIGHTS, tensors)
    return sum(tensor.size for tensor in tensors.values())


def _widened(name: str, tensor: Bits, padding: Padding, rng: np.random.Generator) -> Bits:
    if ".mlp.gate_proj." in name or ".mlp.up_proj." in name:
        rows, columns = tensor.shape
        added = rng.standard_normal((padding.intermediate_size - rows, columns), np.float32) * np.float32(padding.std)
        return np.concatenate([tensor, to_bf16(added)])
    if ".mlp.down_proj." in name:
        rows, columns = tensor.shape
        return np.concatenate([tensor, np.zeros((rows, padding.intermediate_size - columns), np.uint16)], axis=1)
    return tensor
