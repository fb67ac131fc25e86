"""The arms of a sweep: the baseline, and every method and k with every combination of the space."""

import re
from collections.abc import Mapping
from itertools import product

from pydantic import JsonValue

from orchestrator.config import Drafter, Setting, Speculation, SweepConfig
from orchestrator.errors import ConfigError
from orchestrator.ids import content_id
from orchestrator.methods import METHODS, MethodEntry
from orchestrator.records import Arm, ServerSpec

MIN_MAX_NUM_SEQS = 16
OPEN_LOOP_MAX_NUM_SEQS = 128
"""As many requests as an open loop makes; vLLM's own default for a server on CPU."""


def speculative_config(config: SweepConfig, speculation: Speculation, k: int) -> dict[str, JsonValue]:
    """vLLM's `--speculative-config` for one k of a method's grid."""
    entry = METHODS[speculation.method]
    drafter = _drafter(config, entry)
    largest = entry.largest_k(drafter.block_size if drafter else None)
    if largest is not None and k > largest and not speculation.allow_beyond_block:
        raise ConfigError(beyond_block(entry, drafter.model if drafter else config.model.target, largest, k))
    chosen: dict[str, JsonValue] = {"method": entry.method_for_engine, "num_speculative_tokens": k}
    if drafter:
        chosen["model"] = drafter.model
        chosen |= {"revision": drafter.revision} if drafter.revision else {}
    return chosen | speculation.parameters | speculation.extra


def beyond_block(entry: MethodEntry, drafter: str, largest: int, k: int) -> str:
    """What is wrong with a k that the drafter's block does not take."""
    rule = "block_size - 1" if entry.beyond_block else "block_size"
    return (
        f"speculation.num_speculative_tokens: {entry.name} drafts at most {rule} = {largest} tokens with {drafter}, "
        f"but got {k}; vLLM would take it silently. To measure it all the same: speculation.allow_beyond_block=true"
    )


def _drafter(config: SweepConfig, entry: MethodEntry) -> Drafter | None:
    drafter = config.model.drafters.get(entry.name)
    if drafter is None and entry.drafter == "needed":
        known = sorted(config.model.drafters) or ["none"]
        raise ConfigError(
            f"model {config.model.name!r} has no drafter for method {entry.name!r} (it has: {', '.join(known)}); "
            f"set model.drafters.{entry.name}.model, or choose another speculation"
        )
    return drafter


def baseline_arm(config: SweepConfig) -> Arm:
    """The arm without speculation, which is in every plan."""
    return _arm(config, None, 0, {})


def arms_of(config: SweepConfig) -> tuple[Arm, ...]:
    """Every arm of the grid, as `plan.Plan.arms` orders them.

    Raises:
        ConfigError: no drafter for the method, or k beyond the drafter's block.
    """
    choices = [dict(zip(config.space.axes, values, strict=True)) for values in product(*config.space.axes.values())]
    by_method = {each.method: each for each in config.speculation}
    grid = [(k, method) for method in config.methods for k in by_method[method].num_speculative_tokens]
    grid.sort(key=lambda point: point[0])  # stable: of each k the simplest method first
    arms = [_arm(config, by_method[method], k, settings) for k, method in grid for settings in choices]
    return (baseline_arm(config), *arms)


def _arm(config: SweepConfig, speculation: Speculation | None, k: int, settings: Mapping[str, Setting]) -> Arm:
    """`speculation` is None for the baseline."""
    server = config.server
    of_drafter = {OF_DRAFTER[key]: value for key, value in settings.items() if key in OF_DRAFTER}
    fields: dict[str, object] = {
        "launcher": server.launcher,
        "command": server.command,
        "image": server.image,
        "url": server.url,
        "target": config.model.target,
        "revision": config.model.revision,
        "dtype": config.model.dtype,
        "max_model_len": config.model.max_model_len,
        "max_num_seqs": server.max_num_seqs or _max_num_seqs(config),
        "max_num_batched_tokens": server.max_num_batched_tokens,
        "kv_cache_gib": server.kv_cache_gib,
        "enforce_eager": server.enforce_eager,
        "enable_prefix_caching": server.enable_prefix_caching,
        "enable_chunked_prefill": server.enable_chunked_prefill,
        "trust_remote_code": config.model.trust_remote_code,
        "preload_openmp": server.preload_openmp,
        "preload_tcmalloc": server.preload_tcmalloc,
        "omp_threads_bind": server.omp_threads_bind,
        "tensor_parallel_size": server.tensor_parallel_size,
        "server_per": config.hardware.server_per,
        "reserved_cores": config.hardware.reserved_cores,
        "speculative_config": {**speculative_config(config, speculation, k), **of_drafter} if speculation else None,
        "extra_args": server.extra_args,
        "env": server.env,
        "patches": server.patches,
    }
    of_server = {key: value for key, value in settings.items() if key not in OF_DRAFTER}
    spec = ServerSpec.model_validate({**fields, **of_server})
    method = speculation.method if speculation else "none"
    name = "-".join([f"{method}-k{k}" if k else method, *(_label(*setting) for setting in settings.items())])
    _require_room_in_a_step(name, spec, k)
    identity = {
        "hardware": config.hardware.name,
        "method": method,
        "k": k,
        "server": spec.model_dump(mode="json", exclude_defaults=True),
    }
    return Arm(
        id=content_id(identity),
        name=name,
        method=method,
        num_speculative_tokens=k,
        hardware=config.hardware.name,
        server=spec,
        settings=dict(settings),
    )


OF_DRAFTER = {
    "draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "draft_attention_backend": "attention_backend",
}
"""Axis of `space` that is a key of speculative_config -> that key."""
_SHORT = {
    "omp_threads_bind": "bind",
    "tensor_parallel_size": "tp",
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "tokens",
    "reserved_cores": "reserved",
    "dtype": "",
    "kv_cache_gib": "kv",
    "draft_tensor_parallel_size": "drafttp",
    "draft_attention_backend": "draft",
}
_SWITCHES = {
    "enforce_eager": ("compiled", "eager"),
    "enable_prefix_caching": ("noprefix", "prefix"),
    "enable_chunked_prefill": ("unchunked", "chunked"),
    "preload_openmp": ("noiomp", "iomp"),
    "preload_tcmalloc": ("nomalloc", "tcmalloc"),
}
"""Off and on."""


def _max_num_seqs(config: SweepConfig) -> int:
    if config.workload.is_open_loop:
        return OPEN_LOOP_MAX_NUM_SEQS
    return max(MIN_MAX_NUM_SEQS, *config.workload.max_concurrency)


def _label(key: str, value: Setting) -> str:
    """A setting in an arm's name: `seqs32`, `tokens2048`, `eager`, `bind0-31`; of a binding that is long or unfit for a
    file name, its hash."""
    if key in _SWITCHES:
        return _SWITCHES[key][bool(value)]
    text = f"{value:g}" if isinstance(value, float) else str(value)
    plain = text if re.fullmatch(r"[A-Za-z0-9.-]{1,16}", text) else content_id(text)[:6]
    return _SHORT[key] + plain


def _require_room_in_a_step(name: str, spec: ServerSpec, k: int) -> None:
    """What vLLM would refuse only when the server starts."""
    needed = max(spec.max_num_seqs, k + 1)
    if spec.max_num_batched_tokens is not None and spec.max_num_batched_tokens < needed:
        raise ConfigError(
            f"arm {name}: max_num_batched_tokens must be at least {needed}, for max_num_seqs={spec.max_num_seqs} and "
            f"num_speculative_tokens={k}, but got {spec.max_num_batched_tokens}"
        )
