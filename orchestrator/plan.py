"""The plan: arms x workloads x blocks, a pure and deterministic function of configuration and prompts."""

import math
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Literal

from pydantic import JsonValue

from orchestrator.config import Drafter, Level, Setting, Speculation, Strict, SweepConfig
from orchestrator.errors import ConfigError, PromptsUnavailable
from orchestrator.ids import canonical_id, canonical_json, content_id
from orchestrator.load_point import prompt_set_name
from orchestrator.methods import METHODS, MethodEntry
from orchestrator.records import Arm, Block, Prompt, ServerSpec, WorkloadCell

MIN_MAX_NUM_SEQS = 16
OPEN_LOOP_MAX_NUM_SEQS = 128
"""As many requests as an open loop makes; vLLM's own default for a server on CPU."""
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
WARMUP_REQUESTS = 4
"""In an open loop, at once."""


class PromptSet(Strict):
    """The usable prompts of a dataset, in the order blocks are cut from."""

    prompts: tuple[Prompt, ...]
    num_read: int
    num_too_long: int
    """Dropped because prompt + output exceed the model's context."""
    num_outside: int = 0
    """Left out because their length is outside the bucket."""

    def within(self, low: int, high: int) -> "PromptSet":
        """The prompts of `low` tokens up to below `high`; one that was not counted is in every bucket."""
        chosen = tuple(p for p in self.prompts if p.num_tokens is None or low <= p.num_tokens < high)
        outside = len(self.prompts) - len(chosen)
        return self.model_copy(update={"prompts": chosen, "num_outside": outside})


class PromptCount(Strict):
    """What the plan remembers of a dataset's prompts."""

    num_read: int
    num_too_long: int
    num_usable: int
    content_id: str
    num_outside: int = 0


class Plan(Strict):
    schema_version: Literal[1] = 1
    id: str
    name: str
    arms: tuple[Arm, ...]
    """The baseline first, then by growing num_speculative_tokens, of each k the simplest method first, each with every
    combination of the space: where all else is equal the first one is chosen."""
    workloads: tuple[WorkloadCell, ...]
    blocks: tuple[Block, ...]
    prompts: dict[str, PromptCount]

    @property
    def baseline(self) -> Arm:
        return self.arms[0]

    def arm(self, arm_id: str) -> Arm:
        return next(arm for arm in self.arms if arm.id == arm_id)

    def blocks_of(self, workload_id: str) -> tuple[Block, ...]:
        return tuple(self._blocks_by_workload.get(workload_id, ()))

    def shared_prompts(self, one: str, other: str) -> float:
        """The part of their prompts that two workloads (ids) have in common: their number over the geometric mean of
        both, 0 for none, 1 for the same ones."""
        return self._shared_prompts.get((one, other), 0.0)

    @cached_property
    def _shared_prompts(self) -> Mapping[tuple[str, str], float]:
        """Only workloads of the same dataset can share any."""
        prompts = {
            cell.id: {index for block in self.blocks_of(cell.id) for index in block.prompt_indices}
            for cell in self.workloads
        }
        return {
            (one.id, other.id): len(mine & theirs) / math.sqrt(len(mine) * len(theirs))
            for one, other in product(self.workloads, repeat=2)
            if one.dataset == other.dataset and (mine := prompts[one.id]) and (theirs := prompts[other.id])
        }

    @cached_property
    def _blocks_by_workload(self) -> Mapping[str, list[Block]]:
        found: defaultdict[str, list[Block]] = defaultdict(list)
        for block in self.blocks:
            found[block.workload_id].append(block)
        return found


@dataclass(frozen=True)
class _Drawn:
    """A dataset's prompts as blocks are cut from them. Made once a dataset, for every workload of it."""

    prompts: PromptSet
    order: list[int]
    """Positions in `prompts`, drawn from the seed."""
    messages: list[str]
    """Canonical JSON of what is sent of each prompt, in the order of `prompts`."""

    def order_at(self, cell: WorkloadCell) -> list[int]:
        """`order` from the workload's own place on, so that the levels of load share no prompts where there are enough.

        The place follows from the level alone: a level, or blocks, that are added later move none. Multiples of the
        golden ratio spread the powers of two (1, 2, 4, ...) over the prompts as evenly as can be, however many there
        are. A log is replayed from its beginning at every speed.
        """
        if cell.arrival == "log":
            return self.order
        place = int(len(self.order) * (math.log2(cell.level) * GOLDEN_RATIO % 1))
        return self.order[place:] + self.order[:place]


def prompt_sets(config: SweepConfig, by_dataset: Mapping[str, PromptSet]) -> dict[str, PromptSet]:
    """What `plan_sweep` takes, from every dataset's prompts: cut by `workload.prompt_tokens` where that is given."""
    buckets = config.workload.prompt_tokens
    if not buckets:
        return dict(by_dataset)
    return {
        prompt_set_name(name, bucket): found.within(*bucket) for name, found in by_dataset.items() for bucket in buckets
    }


def plan_sweep(config: SweepConfig, prompts: Mapping[str, PromptSet]) -> Plan:
    """Every arm, workload and block that `config` describes, over `prompts` (as `prompt_sets` gives them).

    Raises:
        ConfigError: no drafter for the method, k beyond the drafter's block, or prompts that cannot fit.
        PromptsUnavailable: a dataset has fewer usable prompts than its blocks need.
    """
    arms = _arms(config)
    names = _prompt_set_names(config)
    drawn = {name: _draw(config, name, prompts[name]) for name in names}
    workloads = tuple(_with_warmup(cell, drawn[cell.dataset]) for cell in _workloads(config))
    blocks = tuple(block for cell in workloads for block in _blocks(config, cell, drawn[cell.dataset]))
    counts = {name: _count(drawn[name]) for name in names}
    identity = [config.name, [arm.id for arm in arms], [block.id for block in blocks]]
    plan = Plan(
        id=content_id(identity), name=config.name, arms=arms, workloads=workloads, blocks=blocks, prompts=counts
    )
    _require_no_memory_of_prompts(plan)
    return plan


def _require_no_memory_of_prompts(plan: Plan) -> None:
    """A server that drafts from earlier answers would only repeat those of another level of load."""
    remembering = [arm.name for arm in plan.arms if arm.method == "suffix" and _remembers(arm)]
    for one, other in combinations(plan.workloads, 2):
        if remembering and plan.shared_prompts(one.id, other.id):
            raise ConfigError(
                f"arm {remembering[0]} drafts from answers that its server remembers, but {one.name} and {other.name} "
                f"share prompts, since dataset {one.dataset!r} has too few for each to have its own: the second would "
                "be drafted from its own answers. Set suffix_decoding_max_cached_requests=0 in the speculation, "
                "measure one level at a time, lower workload.num_blocks, or give more prompts"
            )


def _remembers(arm: Arm) -> bool:
    """vLLM's own default is to remember 10,000 answers."""
    return (arm.server.speculative_config or {}).get("suffix_decoding_max_cached_requests") != 0


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


def _arms(config: SweepConfig) -> tuple[Arm, ...]:
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


def _workloads(config: SweepConfig) -> tuple[WorkloadCell, ...]:
    return tuple(
        _workload(config, name, level) for name in _prompt_set_names(config) for level in sorted(config.workload.levels)
    )


def _prompt_set_names(config: SweepConfig) -> list[str]:
    buckets = config.workload.prompt_tokens or (None,)
    return [prompt_set_name(dataset, bucket) for dataset in config.datasets for bucket in buckets]


def _workload(config: SweepConfig, dataset: str, level: Level) -> WorkloadCell:
    workload = config.workload
    identity: dict[str, object] = {
        "dataset": dataset,
        "max_concurrency": None,
        "arrival": workload.arrival,
        workload.axis: level,
        "output_len": workload.output_len,
        "ignore_eos": workload.ignore_eos,
        "temperature": workload.temperature,
        "top_p": workload.top_p,
        "seed": config.seed,
        "chat_template_kwargs": dict(config.model.chat_template_kwargs),
        "request_timeout_s": workload.request_timeout_s,
    }
    hashed = WorkloadCell.model_validate(identity | {"id": "", "name": ""})
    cell_id = content_id(_without_defaults(hashed.model_dump(mode="json"), _LATER_CELL_FIELDS))
    return hashed.model_copy(update={"id": cell_id, "name": hashed.point_name})


_LATER_CELL_FIELDS: Mapping[str, object] = {"arrival": "closed", "request_rate": None, "log_speed": None}
_LATER_PROMPT_FIELDS: Mapping[str, object] = {"later_turns": [], "max_tokens": None, "arrival_s": None}
"""Fields of WorkloadCell and of Prompt that came later, and their defaults."""


def _without_defaults(fields: dict[str, object], later: Mapping[str, object]) -> dict[str, object]:
    """Identities leave a later field out where it has its default, so that ids stay."""
    return {key: value for key, value in fields.items() if key not in later or value != later[key]}


def _draw(config: SweepConfig, dataset: str, prompts: PromptSet) -> _Drawn:
    order = list(range(len(prompts.prompts)))
    if config.workload.arrival != "log":  # a log is replayed as it was
        random.Random(f"{config.seed}/{dataset}").shuffle(order)
    messages = [_content(prompt, config.workload.arrival == "log") for prompt in prompts.prompts]
    return _Drawn(prompts=prompts, order=order, messages=messages)


def _content(prompt: Prompt, with_arrival: bool) -> str:
    """Canonical JSON of the messages, or of those and what else is sent."""
    messages = [message.model_dump() for message in prompt.messages]
    fields = prompt.model_dump(mode="json", include=set(_LATER_PROMPT_FIELDS))
    more = _without_defaults(fields, _LATER_PROMPT_FIELDS)
    if not with_arrival:
        more.pop("arrival_s", None)
    return canonical_json({"messages": messages, **more} if more else messages)


def _blocks(config: SweepConfig, cell: WorkloadCell, drawn: _Drawn) -> list[Block]:
    """Disjoint slices of the prompts in the workload's order; the same for every arm."""
    prompts, size = drawn.prompts, config.workload.block_len(cell.level)
    needed = size * config.workload.num_blocks
    if len(prompts.prompts) < needed:
        raise PromptsUnavailable(
            f"dataset {cell.dataset!r} has {len(prompts.prompts)} usable prompts ({prompts.num_read} read, "
            f"{prompts.num_too_long} too long for model.max_model_len={config.model.max_model_len} with "
            f"workload.output_len={cell.output_len}{_outside(prompts)}), but workload {cell.name} needs {needed} "
            f"({config.workload.num_blocks} blocks of {size}); lower workload.num_blocks or "
            "workload.prompts_per_block, shorten workload.output_len, or give more prompts"
            f"{', or wider buckets in workload.prompt_tokens' if prompts.num_outside else ''}"
        )
    order = drawn.order_at(cell)
    return [
        _block(cell, index, tuple(order[index * size : (index + 1) * size]), drawn)
        for index in range(config.workload.num_blocks)
    ]


def _with_warmup(cell: WorkloadCell, drawn: _Drawn) -> WorkloadCell:
    """Warm-up takes the prompts at the far end of the order: unmeasured ones wherever there are enough."""
    number = WARMUP_REQUESTS if cell.max_concurrency is None else cell.max_concurrency
    return cell.model_copy(update={"warmup_prompt_indices": tuple(drawn.order_at(cell)[-number:])})


def _outside(prompts: PromptSet) -> str:
    return f", {prompts.num_outside} of another length" if prompts.num_outside else ""


def _block(cell: WorkloadCell, index: int, prompt_indices: tuple[int, ...], drawn: _Drawn) -> Block:
    """Its id is that of [workload id, what is sent of each prompt]."""
    content = _json_list(drawn.messages[i] for i in prompt_indices)
    block_id = canonical_id(_json_list([canonical_json(cell.id), content]))
    turns = tuple(drawn.prompts.prompts[i].num_turns for i in prompt_indices)
    return Block(
        id=block_id,
        workload_id=cell.id,
        index=index,
        prompt_indices=prompt_indices,
        num_turns=turns if max(turns) > 1 else (),
    )


def _count(drawn: _Drawn) -> PromptCount:
    return PromptCount(
        num_read=drawn.prompts.num_read,
        num_too_long=drawn.prompts.num_too_long,
        num_usable=len(drawn.prompts.prompts),
        num_outside=drawn.prompts.num_outside,
        content_id=canonical_id(_json_list(drawn.messages)),
    )


def _json_list(items: Iterable[str]) -> str:
    """The canonical JSON of a list, from that of its items."""
    return f"[{','.join(items)}]"
