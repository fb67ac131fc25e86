"""Plugins for vLLM, one per repair. vLLM calls every plugin that is installed where VLLM_PLUGINS is unset, so each one
applies only where VLLM_PLUGINS names it. A repair whose place has changed raises, and the engine does not start."""

import logging
import os
from typing import Any

logger = logging.getLogger("vllm.specsweep_patches")  # below vLLM's own logger, for its format


def sampling_expand() -> None:
    """vLLM 0.32 on CPUs without Triton: `_expand_kernel_impl` writes into an int64 copy of its output, so the sampler's
    temperatures (float) and top-k (int32) are uninitialised memory wherever it speculates at a temperature above 0."""
    if "sampling_expand" not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return
    from vllm.utils import cpu_triton_utils

    if not hasattr(cpu_triton_utils, "_expand_kernel_impl"):
        raise RuntimeError("sampling_expand: this vLLM has no _expand_kernel_impl; remove it from server.patches")
    cpu_triton_utils._expand_kernel_impl = _expand  # the worker registers it after its plugins are loaded
    logger.info("specsweep patch sampling_expand is applied")


def _expand(
    output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any, max_num_tokens: Any = None
) -> None:
    """output[:n] = each value of `input_val` ([batch]) as often as its request has tokens, `replace_from` replaced."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    expanded = input_val.where(input_val != replace_from, replace_to).repeat_interleave(counts.long())
    output[: expanded.shape[0]] = expanded
