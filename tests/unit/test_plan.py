"""The plan is a pure function: everything that affects measuring is in the ids, nothing else is."""

import math
import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import SweepConfig
from orchestrator.errors import ConfigError, PromptsUnavailable
from orchestrator.ids import content_id
from orchestrator.plan import Plan, PromptSet, plan_sweep, prompt_sets
from orchestrator.records import Block, Message, Prompt


def config(changes: Mapping[str, object] | None = None) -> SweepConfig:
    """A small sweep with `changes` by dotted path."""
    tree: dict[str, Any] = {
        "name": "t",
        "hardware": {"name": "local"},
        "model": {
            "name": "m",
            "target": "org/target",
            "max_model_len": 1024,
            "drafters": {"dflash": {"model": "org/drafter", "block_size": 16}},
        },
        "datasets": {"code": {"data_files": "code.jsonl"}, "chat": {"data_files": "chat.jsonl"}},
        "speculation": {"method": "dflash", "num_speculative_tokens": [7, 1]},
        "workload": {"max_concurrency": [4, 1], "num_blocks": 2, "prompts_per_block": 3},
        "server": {},
    }
    for path, value in (changes or {}).items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return SweepConfig.model_validate(tree)


def prompt_set(num: int = 64, *, text: str = "prompt", num_too_long: int = 0) -> PromptSet:
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"{text} {i}"),)) for i in range(num))
    return PromptSet(prompts=prompts, num_read=num + num_too_long, num_too_long=num_too_long)


PROMPTS = {"code": prompt_set(text="code"), "chat": prompt_set(text="chat")}


def plan(changes: Mapping[str, object] | None = None) -> Plan:
    return plan_sweep(config(changes), PROMPTS)


def arm_ids(of: Plan) -> list[str]:
    return [arm.id for arm in of.arms]


def block_ids(of: Plan) -> list[str]:
    return [block.id for block in of.blocks]


def test_arms_are_the_baseline_and_then_growing_k() -> None:
    assert [arm.name for arm in plan().arms] == ["none", "dflash-k1", "dflash-k7"]


@given(st.sets(st.integers(1, 15), min_size=1, max_size=6).flatmap(lambda grid: st.permutations(sorted(grid))))
def test_baseline_is_always_first_and_the_order_of_the_grid_does_not_matter(grid: list[int]) -> None:
    planned = plan({"speculation.num_speculative_tokens": grid})

    assert planned.baseline.is_baseline
    assert planned.baseline.server.speculative_config is None
    assert [arm.num_speculative_tokens for arm in planned.arms] == [0, *sorted(grid)]
    assert planned == plan({"speculation.num_speculative_tokens": sorted(grid)})


def test_plan_without_speculation_is_the_baseline_alone() -> None:
    planned = plan({"speculation": {"method": "none"}, "model.drafters": {}})

    assert arm_ids(planned) == [plan().baseline.id]


def test_workloads_are_every_dataset_at_every_concurrency() -> None:
    assert [cell.name for cell in plan().workloads] == ["code@c1", "code@c4", "chat@c1", "chat@c4"]


def test_speculative_config_is_what_vllm_takes() -> None:
    planned = plan(
        {
            "speculation.num_speculative_tokens": 3,
            "speculation.extra": {"draft_tensor_parallel_size": 1},
            "model.drafters.dflash.revision": "abc",
        }
    )

    assert planned.arms[1].server.speculative_config == {
        "method": "dflash",
        "model": "org/drafter",
        "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 1,
        "revision": "abc",
    }


@pytest.mark.parametrize(("max_concurrency", "expected"), [([1, 4], 16), ([1, 64], 64)])
def test_engine_takes_the_highest_concurrency_at_once(max_concurrency: list[int], expected: int) -> None:
    planned = plan_sweep(
        config({"workload.max_concurrency": max_concurrency}), {name: prompt_set(300) for name in PROMPTS}
    )

    assert {arm.server.max_num_seqs for arm in planned.arms} == {expected}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hardware.name", "other"),
        ("model.target", "org/other"),
        ("model.revision", "abc"),
        ("model.dtype", "float32"),
        ("model.max_model_len", 512),
        ("model.trust_remote_code", True),
        ("server.command", ["/opt/vllm/bin/vllm"]),
        ("server.kv_cache_gib", 2),
        ("server.max_num_seqs", 32),
        ("server.max_num_batched_tokens", 4096),
        ("server.enforce_eager", True),
        ("server.enable_prefix_caching", True),
        ("server.preload_openmp", False),
        ("server.omp_threads_bind", "0-1"),
        ("server.extra_args", ["--no-enable-chunked-prefill"]),
        ("server.env", {"OMP_NUM_THREADS": 1}),
    ],
)
def test_every_arm_changes_its_id_with_what_affects_the_server(path: str, value: object) -> None:
    assert not set(arm_ids(plan({path: value}))) & set(arm_ids(plan()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.drafters.dflash.model", "org/other"),
        ("model.drafters.dflash.revision", "abc"),
        ("speculation.extra", {"draft_tensor_parallel_size": 1}),
    ],
)
def test_only_the_speculating_arms_change_with_what_affects_the_draft(path: str, value: object) -> None:
    changed = plan({path: value})

    assert changed.baseline == plan().baseline
    assert not set(arm_ids(changed)[1:]) & set(arm_ids(plan())[1:])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("workload.output_len", 64),
        ("workload.ignore_eos", False),
        ("workload.temperature", 0.5),
        ("workload.top_p", 0.9),
        ("workload.request_timeout_s", 10),
        ("workload.prompts_per_block", 9),
        ("model.chat_template_kwargs", {"enable_thinking": False}),
        ("seed", 1),
    ],
)
def test_every_block_changes_its_id_with_what_affects_the_load(path: str, value: object) -> None:
    assert not set(block_ids(plan({path: value}))) & set(block_ids(plan()))


def test_block_changes_its_id_with_the_text_of_its_prompts() -> None:
    other = plan_sweep(config(), PROMPTS | {"code": prompt_set(text="edited")})

    kept = set(block_ids(other)) & set(block_ids(plan()))
    assert kept == {block.id for block in other.blocks if block.workload_id in _cells(other, "chat")}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("results_dir", "elsewhere"),
        ("server.port", 8000),
        ("server.ready_timeout_s", 10),
        ("server.stop_grace_s", 1),
        ("hardware.usd_per_hour", 4.4),
        ("model.name", "renamed"),
        ("search.max_attempts", 5),
        ("selection.tie_tolerance", 0.05),
        ("cluster.address", "10.0.0.1:6379"),
        ("tracking.uri", None),
    ],
)
def test_no_arm_or_block_changes_its_id_with_anything_else(path: str, value: object) -> None:
    changed = plan({path: value})

    assert arm_ids(changed) == arm_ids(plan())
    assert block_ids(changed) == block_ids(plan())


def test_more_blocks_and_another_dataset_keep_what_was_measured() -> None:
    more = plan({"workload.num_blocks": 4})
    fewer_sets = plan({"datasets": {"chat": {"data_files": "chat.jsonl"}}})

    assert set(block_ids(plan())) < set(block_ids(more))
    assert set(block_ids(fewer_sets)) < set(block_ids(plan()))


def test_blocks_do_not_depend_on_the_arms() -> None:
    assert "arm_id" not in Block.model_fields
    assert plan({"speculation": {"method": "none"}}).blocks == plan().blocks


@given(
    max_concurrency=st.sets(st.integers(1, 20), min_size=1, max_size=3),
    num_blocks=st.integers(2, 4),
    prompts_per_block=st.integers(1, 20),
    seed=st.integers(0, 5),
)
def test_blocks_of_a_workload_are_disjoint_and_full(
    max_concurrency: set[int], num_blocks: int, prompts_per_block: int, seed: int
) -> None:
    changes = {
        "workload.max_concurrency": sorted(max_concurrency),
        "workload.num_blocks": num_blocks,
        "workload.prompts_per_block": prompts_per_block,
        "seed": seed,
    }
    prompts = {name: prompt_set(160, text=name) for name in PROMPTS}
    planned = plan_sweep(config(changes), prompts)

    for cell in planned.workloads:
        blocks = planned.blocks_of(cell.id)
        indices = [index for block in blocks for index in block.prompt_indices]
        size = max(prompts_per_block, 2 * int(cell.level))
        assert [len(block.prompt_indices) for block in blocks] == [size] * num_blocks
        assert len(set(indices)) == len(indices)
        assert set(indices) <= set(range(160))
    assert len(set(block_ids(planned))) == len(planned.blocks)
    assert planned == plan_sweep(config(changes), prompts)


@given(levels=st.sets(st.sampled_from([1, 2, 4, 8, 16]), min_size=2), seed=st.integers(0, 5))
def test_levels_of_a_dataset_share_no_prompts_where_there_are_enough(levels: set[int], seed: int) -> None:
    changes = {"workload.max_concurrency": sorted(levels), "workload.num_blocks": 3, "seed": seed}
    prompts = {name: prompt_set(1000, text=name) for name in PROMPTS}
    planned = plan_sweep(config(changes), prompts)

    for one, other in combinations(planned.workloads, 2):
        assert planned.shared_prompts(one.id, other.id) == 0


def test_share_of_common_prompts_is_their_number_over_the_mean_of_both() -> None:
    planned = plan_sweep(config({"workload.num_blocks": 4}), {name: prompt_set(32, text=name) for name in PROMPTS})
    few, many = planned.workloads[:2]  # 12 prompts from place 0 on, 32 of 32

    assert planned.shared_prompts(few.id, few.id) == 1
    assert planned.shared_prompts(few.id, many.id) == pytest.approx(12 / math.sqrt(12 * 32))
    assert planned.shared_prompts(few.id, planned.workloads[2].id) == 0


def test_levels_and_blocks_that_are_added_move_none_of_the_others() -> None:
    more = plan({"workload.max_concurrency": [1, 2, 4], "workload.num_blocks": 3})

    assert set(block_ids(plan())) < set(block_ids(more))


MEMORY = {"method": "suffix", "num_speculative_tokens": [8], "suffix_decoding_max_cached_requests": 100}


def test_server_that_remembers_answers_is_refused_prompts_that_another_level_sent() -> None:
    with pytest.raises(ConfigError, match=r"arm suffix-k8 drafts from answers.*code@c1 and code@c4 share prompts"):
        plan_sweep(config({"speculation": MEMORY}), {name: prompt_set(18, text=name) for name in PROMPTS})

    plan({"speculation": MEMORY})
    forgets = MEMORY | {"suffix_decoding_max_cached_requests": 0}
    plan_sweep(config({"speculation": forgets}), {name: prompt_set(18, text=name) for name in PROMPTS})


def test_warm_up_sends_no_prompt_that_is_measured_where_there_are_enough() -> None:
    planned = plan()

    for cell in planned.workloads:
        measured = {index for block in planned.blocks_of(cell.id) for index in block.prompt_indices}
        assert len(cell.warmup_prompt_indices) == int(cell.level)
        assert not measured & set(cell.warmup_prompt_indices)


def test_prompts_that_were_dropped_are_counted() -> None:
    planned = plan_sweep(config(), PROMPTS | {"code": prompt_set(50, num_too_long=14)})

    count = planned.prompts["code"]
    assert (count.num_read, count.num_too_long, count.num_usable) == (64, 14, 50)


def test_too_few_prompts_is_an_error_that_says_the_counts() -> None:
    with pytest.raises(PromptsUnavailable) as caught:
        plan_sweep(config(), PROMPTS | {"code": prompt_set(7, num_too_long=3)})

    message = str(caught.value)
    assert "dataset 'code' has 7 usable prompts (10 read, 3 too long for model.max_model_len=1024" in message
    assert "workload code@c4 needs 16 (2 blocks of 8)" in message


@pytest.mark.parametrize("k", [16, 20])
def test_k_beyond_the_drafters_block_is_refused(k: int) -> None:
    with pytest.raises(ConfigError, match=rf"at most block_size - 1 = 15 tokens with org/drafter, but got {k}"):
        plan({"speculation.num_speculative_tokens": [1, k]})


def test_k_beyond_the_block_is_measured_when_asked_for_explicitly() -> None:
    planned = plan({"speculation.num_speculative_tokens": 16, "speculation.allow_beyond_block": True})

    assert planned.arms[-1].num_speculative_tokens == 16


def test_largest_k_of_the_block_and_any_k_of_an_unknown_block_are_fine() -> None:
    assert plan({"speculation.num_speculative_tokens": 15}).arms[-1].name == "dflash-k15"
    unknown = {"speculation.num_speculative_tokens": 40, "model.drafters.dflash.block_size": None}
    assert plan(unknown).arms[-1].name == "dflash-k40"


def test_missing_drafter_names_model_method_and_remedy() -> None:
    with pytest.raises(ConfigError, match=r"model 'm' has no drafter for method 'dflash'.*model\.drafters\.dflash"):
        plan({"model.drafters": {}})


def test_block_has_the_id_of_its_workload_and_its_messages() -> None:
    for block in plan().blocks:
        cell = next(cell for cell in plan().workloads if cell.id == block.workload_id)
        prompts = (PROMPTS[cell.dataset].prompts[index] for index in block.prompt_indices)
        messages = [[message.model_dump() for message in prompt.messages] for prompt in prompts]
        assert block.id == content_id([cell.id, messages])


def test_prompts_are_written_out_once_however_many_blocks_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    dump = Message.model_dump

    def counted(message: Message) -> dict[str, Any]:
        written.append(message.content)
        return dump(message)

    monkeypatch.setattr(Message, "model_dump", counted)

    plan({"workload.max_concurrency": [1, 2, 3, 4]})

    assert sorted(written) == sorted(p.messages[0].content for found in PROMPTS.values() for p in found.prompts)


def test_blocks_of_a_workload_are_its_own_in_their_order() -> None:
    found = plan()
    assert [block for cell in found.workloads for block in found.blocks_of(cell.id)] == list(found.blocks)
    assert found.blocks_of("unknown") == ()
    assert found == plan()


def test_plan_survives_its_json() -> None:
    assert Plan.model_validate_json(plan().model_dump_json()) == plan()


# --- settings that vary together with k


def test_ids_of_arms_without_a_space_never_change() -> None:
    # A changed value here means that every ledger on disk loses its measurements.
    assert arm_ids(plan()) == ["26fef83c3fbe", "daec138374a1", "62441364de3d"]


def test_space_makes_an_arm_of_every_combination_with_every_k_and_one_plain_baseline() -> None:
    planned = plan({"space": {"max_num_seqs": [16, 32], "enforce_eager": [False, True]}})

    assert [arm.name for arm in planned.arms] == [
        "none",
        *(f"dflash-k{k}-seqs{seqs}-{mode}" for k in (1, 7) for seqs in (16, 32) for mode in ("compiled", "eager")),
    ]
    assert planned.baseline == plan().baseline
    assert planned.arms[-1].settings == {"max_num_seqs": 32, "enforce_eager": True}
    assert (planned.arms[-1].server.max_num_seqs, planned.arms[-1].server.enforce_eager) == (32, True)
    assert len(set(arm_ids(planned))) == len(planned.arms)
    assert Plan.model_validate_json(planned.model_dump_json()) == planned


def test_space_sets_the_drafter_where_vllm_reads_it_and_the_baseline_stays_plain() -> None:
    planned = plan({"space": {"draft_tensor_parallel_size": [1, 2], "draft_attention_backend": ["TORCH_SDPA"]}})
    assert planned.arms[0].settings == {}
    varied = planned.arms[1:3]
    assert [re.sub(r"draft[0-9a-f]{6}$", "draftHASH", arm.name.split("-", 2)[2]) for arm in varied] == [
        "drafttp1-draftHASH",
        "drafttp2-draftHASH",
    ]
    for arm, size in zip(varied, (1, 2), strict=True):
        config = arm.server.speculative_config or {}
        assert (config["draft_tensor_parallel_size"], config["attention_backend"]) == (size, "TORCH_SDPA")


@pytest.mark.parametrize(
    ("axis", "values", "names"),
    [
        ("dtype", ["bfloat16", "float32"], ["bfloat16", "float32"]),
        ("kv_cache_gib", [1, 2.5], ["kv1", "kv2.5"]),
        ("enable_chunked_prefill", [False, True], ["unchunked", "chunked"]),
        ("enable_prefix_caching", [True], ["prefix"]),
        ("preload_tcmalloc", [False, True], ["nomalloc", "tcmalloc"]),
        ("reserved_cores", [0, 2], ["reserved0", "reserved2"]),
    ],
)
def test_every_engine_setting_can_be_an_axis(axis: str, values: list[object], names: list[str]) -> None:
    arms = plan({"space": {axis: values}}).arms[1 : len(values) + 1]
    assert [getattr(arm.server, axis) for arm in arms] == values
    assert [arm.name.split("-")[-1] for arm in arms] == names


def test_arm_of_a_space_is_the_same_as_with_that_value_in_server_so_that_measurements_carry_over() -> None:
    varied = plan({"space": {"max_num_batched_tokens": [2048], "omp_threads_bind": ["0-1"]}})

    fixed = plan({"server": {"max_num_batched_tokens": 2048, "omp_threads_bind": "0-1"}})

    assert arm_ids(varied)[1:] == arm_ids(fixed)[1:]


@pytest.mark.parametrize("bindings", [["0-31|32-63", "0-31,32-63"], ["0-7", ",".join(map(str, range(64)))]])
def test_names_of_arms_are_unique_short_and_fit_for_files(bindings: list[str]) -> None:
    names = [arm.name for arm in plan({"space": {"omp_threads_bind": bindings}}).arms]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{1,40}", name) for name in names)


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({"server.max_num_batched_tokens": 15}, 16),
        ({"space": {"max_num_batched_tokens": [8, 2048]}}, 16),
        ({"space": {"max_num_batched_tokens": [7], "max_num_seqs": [1]}, "server.max_num_batched_tokens": 16}, 8),
    ],
)
def test_step_too_small_for_its_sequences_or_drafts_is_refused(changes: dict[str, object], least: int) -> None:
    with pytest.raises(ConfigError, match=rf"arm \S+: max_num_batched_tokens must be at least {least}"):
        plan(changes)


def _cells(of: Plan, dataset: str) -> set[str]:
    return {cell.id for cell in of.workloads if cell.dataset == dataset}


# --- loads, lengths and conversations


def test_ids_of_what_was_measured_before_never_change() -> None:
    # A changed value here means that every ledger on disk loses its measurements.
    planned = plan()

    assert [cell.id for cell in planned.workloads] == ["f528e9d55628", "a959d2f56e83", "e8b25fb51c81", "ed4722128303"]
    assert planned.blocks[0].id == "cb53a5164cdd"


OPEN_LOOP = {
    "workload": {"arrival": "poisson", "request_rate": [2.5, 1], "num_blocks": 2, "prompts_per_block": 3},
    "search.strategy": "grid",
    "selection.objective": "e2e",
}


def test_open_loop_is_measured_at_every_rate_on_blocks_of_the_size_given() -> None:
    planned = plan(OPEN_LOOP)

    assert [cell.name for cell in planned.workloads] == ["code@r1", "code@r2.5", "chat@r1", "chat@r2.5"]
    assert {cell.max_concurrency for cell in planned.workloads} == {None}
    assert {len(block.prompt_indices) for block in planned.blocks} == {3}
    assert planned.baseline.server.max_num_seqs == 128
    assert len({cell.id for cell in planned.workloads}) == 4


def test_arrival_is_part_of_the_identity() -> None:
    constant = plan(OPEN_LOOP | {"workload": {**OPEN_LOOP["workload"], "arrival": "constant"}})  # type: ignore[dict-item]

    assert {cell.id for cell in constant.workloads}.isdisjoint(cell.id for cell in plan(OPEN_LOOP).workloads)


def test_log_is_replayed_in_its_own_order_and_its_times_are_part_of_the_blocks() -> None:
    changes = {
        "datasets": {"log": {"data_files": "log.jsonl", "turns": "last", "arrival_field": "at"}},
        "workload": {"arrival": "log", "num_blocks": 2, "prompts_per_block": 3},
        "search.strategy": "grid",
        "selection.objective": "e2e",
    }

    def replayed(gap_s: float) -> Plan:
        prompts = [p.model_copy(update={"arrival_s": gap_s * i}) for i, p in enumerate(prompt_set(9).prompts)]
        return plan_sweep(config(changes), {"log": PromptSet(prompts=tuple(prompts), num_read=9, num_too_long=0)})

    assert [cell.name for cell in replayed(1).workloads] == ["log@x1"]
    assert [block.prompt_indices for block in replayed(1).blocks] == [(0, 1, 2), (3, 4, 5)]
    assert set(block_ids(replayed(1))).isdisjoint(block_ids(replayed(2)))


def counted(lengths: list[int]) -> PromptSet:
    pairs = zip(prompt_set(len(lengths)).prompts, lengths, strict=True)
    prompts = [prompt.model_copy(update={"num_tokens": length}) for prompt, length in pairs]
    return PromptSet(prompts=tuple(prompts), num_read=len(prompts), num_too_long=0)


BUCKETS = {"workload.prompt_tokens": [[0, 512], [512, 2048]], "datasets": {"code": {"data_files": "code.jsonl"}}}


def test_buckets_of_prompt_lengths_are_workloads_of_their_own() -> None:
    asked = config(BUCKETS)
    sets = prompt_sets(asked, {"code": counted([10, 511, 512, 2047, 2048] * 8)})

    planned = plan_sweep(asked, sets)

    assert [cell.name for cell in planned.workloads] == [
        "code@c1:0-512",
        "code@c4:0-512",
        "code@c1:512-2048",
        "code@c4:512-2048",
    ]
    for cell in planned.workloads:
        prompts = sets[cell.dataset].prompts
        found = {prompts[i].num_tokens for block in planned.blocks_of(cell.id) for i in block.prompt_indices}
        assert found <= ({10, 511} if cell.dataset == "code:0-512" else {512, 2047})
    assert planned.prompts["code:0-512"].num_outside == 24


def test_bucket_with_too_few_prompts_says_how_many_have_another_length() -> None:
    asked = config(BUCKETS)

    with pytest.raises(
        PromptsUnavailable, match=r"'code:512-2048' has 5 usable prompts .* 40 of another length\).*wider"
    ):
        plan_sweep(asked, prompt_sets(asked, {"code": counted([10] * 40 + [600] * 5)}))


def test_conversation_counts_its_turns_and_has_other_blocks_than_its_first_turn() -> None:
    single = prompt_set()
    double = single.model_copy(
        update={"prompts": tuple(p.model_copy(update={"later_turns": ("and then?",)}) for p in single.prompts)}
    )
    changes = {"datasets": {"code": {"data_files": "code.jsonl"}}}

    once, twice = (plan_sweep(config(changes), {"code": each}) for each in (single, double))

    assert [cell.id for cell in once.workloads] == [cell.id for cell in twice.workloads]
    assert set(block_ids(once)).isdisjoint(block_ids(twice))
    index = twice.blocks[0].prompt_indices[0]
    assert twice.blocks[0].requests[:2] == [(index, 0), (index, 1)]
    assert len(once.blocks[0].requests) * 2 == len(twice.blocks[0].requests)
