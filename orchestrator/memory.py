"""Whether a server fits into a node's memory: weights, drafter, KV cache and an allowance. Pure."""

from typing import Literal

from orchestrator.config import Drafter, Hardware, Model, Strict, SweepConfig
from orchestrator.errors import ConfigError

GIB_IN_GB = 2**30 / 1e9
ALLOWANCE_GB = 6.0
"""For everything besides: the engine's code, buffers and compiled graphs, the driver, the load generator, the system.
A supposition: with the demo pair, whose weights are nothing, the server took 1.6 GiB besides its KV cache."""
BYTES_PER_VALUE = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
"""dtype -> bytes; `auto` is what the checkpoint has, bfloat16 with nearly all of today's."""

Fit = Literal["fits", "does not fit", "unknown"]


class MemoryNeed(Strict):
    """What one server takes of its node, 10^9 bytes; None where it is not known."""

    weights_gb: float | None
    drafter_gb: float | None
    """0 without a drafter of its own."""
    kv_cache_gb: float
    allowance_gb: float = ALLOWANCE_GB
    memory_gb: float | None
    """Of the node (each server's share of it)."""

    @property
    def least_gb(self) -> float:
        """The sum of what is known."""
        return (self.weights_gb or 0) + (self.drafter_gb or 0) + self.kv_cache_gb + self.allowance_gb

    @property
    def most_gb(self) -> float | None:
        """The sum where a drafter of unknown size is as large as its target, which none is; None: not known."""
        if self.weights_gb is None:
            return None
        return self.least_gb + (self.weights_gb if self.drafter_gb is None else 0)

    @property
    def fit(self) -> Fit:
        if self.memory_gb is None:
            return "unknown"
        if self.least_gb > self.memory_gb:
            return "does not fit"
        return "fits" if self.most_gb is not None and self.most_gb <= self.memory_gb else "unknown"

    def __str__(self) -> str:
        parts = {"weights": self.weights_gb, "drafter": self.drafter_gb, "KV cache": self.kv_cache_gb}
        said = [f"{name} {_gb(value)}" for name, value in parts.items() if value != 0]
        total = f"{self.least_gb:,.1f} GB"
        if self.weights_gb is None or self.drafter_gb is None:
            total = f"at least {total}"
        return f"{' + '.join(said)} + allowance {_gb(self.allowance_gb)} = {total}; the node has {_gb(self.memory_gb)}"


def memory_need(model: Model, drafter: Drafter | None, kv_cache_gib: float, memory_gb: float | None) -> MemoryNeed:
    """What a server of `model` with `drafter` (None: without) takes on a node of `memory_gb`."""
    return MemoryNeed(
        weights_gb=weights_gb(model),
        drafter_gb=drafter.weight_gb if drafter else 0.0,
        kv_cache_gb=kv_cache_gib * GIB_IN_GB,
        memory_gb=memory_gb,
    )


def need_of(config: SweepConfig, memory_gb: float | None = None) -> MemoryNeed:
    """The largest server of a sweep. `memory_gb` is what the node was found to have, where its profile does not say."""
    drafters = [found for method in config.methods if (found := config.model.drafters.get(method))]
    drafter = max(drafters, key=lambda found: found.weight_gb or 0.0, default=None)
    return memory_need(config.model, drafter, config.server.kv_cache_gib, server_memory_gb(config.hardware, memory_gb))


def server_memory_gb(hardware: Hardware, found_gb: float | None = None) -> float | None:
    """What one server may take: of a node with a server per NUMA node its share. `found_gb` is the whole node's."""
    node_gb = hardware.memory_gb or found_gb
    return None if node_gb is None else node_gb / hardware.servers_per_node


def require_fit(config: SweepConfig, memory_gb: float | None = None) -> MemoryNeed:
    """What the sweep's largest server takes.

    Raises:
        ConfigError: it cannot fit, or its KV cache cannot hold one request of the length it is to serve.
    """
    need = need_of(config, memory_gb)
    if need.fit == "does not fit":
        raise ConfigError(
            f"model {config.model.name!r} does not fit into the memory of hardware {config.hardware.name!r}: {need}; "
            "choose a smaller model or a larger node, or lower server.kv_cache_gib"
        )
    _require_room_for_a_request(config)
    return need


def weights_gb(model: Model) -> float | None:
    """Of the checkpoint in memory, 10^9 bytes."""
    if model.weight_gb is not None or model.parameters_billion is None:
        return model.weight_gb
    return model.parameters_billion * BYTES_PER_VALUE[model.dtype]


def kv_bytes_per_token(model: Model) -> int | None:
    """Keys and values that grow with every token; layers with a window or a state of fixed size are not counted."""
    if model.num_kv_layers is None or model.num_kv_heads is None or model.head_dim is None:
        return None
    return 2 * model.num_kv_layers * model.num_kv_heads * model.head_dim * BYTES_PER_VALUE[model.dtype]


def _require_room_for_a_request(config: SweepConfig) -> None:
    """vLLM refuses a KV cache that holds less than max_model_len tokens, after it has loaded the weights."""
    per_token, model = kv_bytes_per_token(config.model), config.model
    if per_token is None:
        return
    num_tokens = int(config.server.kv_cache_gib * 2**30 / per_token)
    if num_tokens < model.max_model_len:
        needed = per_token * model.max_model_len / 2**30
        raise ConfigError(
            f"server.kv_cache_gib={config.server.kv_cache_gib:g} holds {num_tokens:,} tokens of model {model.name!r} "
            f"({per_token:,} bytes each), fewer than one request of model.max_model_len={model.max_model_len:,}; "
            f"set server.kv_cache_gib to {needed:.2g} or more"
        )


def _gb(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:,.1f} GB" if value >= 0.1 else f"{value:,.4f} GB"
