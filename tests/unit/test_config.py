"""What the schema refuses, and the figures it derives."""

import pytest
from pydantic import BaseModel, ValidationError

from orchestrator.config import (
    Cluster,
    Constraints,
    Dataset,
    Drafter,
    Fleet,
    FleetSize,
    Hardware,
    Model,
    Search,
    SelectionRules,
    Server,
    Slo,
    Space,
    Speculation,
    SweepConfig,
    Workload,
)

MODEL = Model(name="m", target="t", max_model_len=64)
SWEEP: dict[str, object] = {
    "name": "s",
    "hardware": {"name": "local"},
    "model": MODEL.model_dump(),
    "datasets": {"code": {"data_files": "x.jsonl"}},
    "speculation": {"method": "none"},
    "workload": {"max_concurrency": [1]},
}


def test_smallest_configuration_needs_only_what_has_no_sensible_default() -> None:
    assert SweepConfig.model_validate(SWEEP).server == Server()


@pytest.mark.parametrize("name", ["", "a b", "../x", ".hidden", "a/b"])
def test_sweep_name_must_be_a_plain_folder_name(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        SweepConfig.model_validate(SWEEP | {"name": name})


@pytest.mark.parametrize("name", ["a b", "a/b", "a.b", ""])
def test_dataset_name_must_be_plain(name: str) -> None:
    with pytest.raises(ValidationError, match="letters, digits"):
        SweepConfig.model_validate(SWEEP | {"datasets": {name: {"data_files": "x"}}})


def test_sweep_without_a_dataset_is_refused() -> None:
    with pytest.raises(ValidationError, match="datasets"):
        SweepConfig.model_validate(SWEEP | {"datasets": {}})


@pytest.mark.parametrize(
    "model", [Hardware, Drafter, Model, Dataset, Speculation, Workload, Server, Space, SweepConfig]
)
def test_unknown_keys_are_refused_everywhere(model: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"no_such_key": 1})

    assert "extra_forbidden" in [error["type"] for error in caught.value.errors()]


def test_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        MODEL.name = "other"  # type: ignore[misc]


def test_dataset_needs_a_source() -> None:
    with pytest.raises(ValidationError, match=r"`path`.*or `data_files`"):
        Dataset()


def test_prompt_template_must_place_the_prompt() -> None:
    with pytest.raises(ValidationError, match=r"must contain '\{prompt\}', but got 'Solve:'"):
        Dataset(path="p", prompt_template="Solve:")


def test_method_without_a_grid_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs at least one value in num_speculative_tokens"):
        Speculation(method="dflash")


def test_grid_with_a_repeated_value_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"repeats a value: \[3, 3\]"):
        Speculation(method="dflash", num_speculative_tokens=(3, 3))


def test_k_of_zero_is_refused_because_the_baseline_is_in_anyway() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Speculation(method="dflash", num_speculative_tokens=(0,))


@pytest.mark.parametrize("key", ["method", "model", "num_speculative_tokens"])
def test_extra_must_not_replace_a_key_of_its_own(key: str) -> None:
    with pytest.raises(ValidationError, match="extra must not set"):
        Speculation(method="dflash", num_speculative_tokens=(3,), extra={key: 1})


def test_one_value_stands_for_a_list_of_one() -> None:
    assert Speculation.model_validate({"method": "dflash", "num_speculative_tokens": 3}).num_speculative_tokens == (3,)
    assert Workload.model_validate({"max_concurrency": 4}).max_concurrency == (4,)


def test_every_stream_of_a_block_sends_at_least_two_requests() -> None:
    workload = Workload(max_concurrency=(1, 16), prompts_per_block=8)

    assert (workload.block_len(1), workload.block_len(4), workload.block_len(16)) == (8, 8, 32)


@pytest.mark.parametrize("address", ["auto", "10.0.0.1", "ray://", ":6379", "host:port"])
def test_cluster_address_must_name_host_and_port(address: str) -> None:
    with pytest.raises(ValidationError, match="must be HOST:PORT"):
        Cluster(address=address)


def test_cluster_address_may_be_absent_or_explicit() -> None:
    assert Cluster().address is None
    assert Cluster(address="10.0.0.1:6379").address == "10.0.0.1:6379"


def test_numbers_in_what_the_engine_reads_as_text_become_text() -> None:
    server = Server.model_validate({"env": {"OMP_NUM_THREADS": 4}, "extra_args": ["--block-size", 32]})

    assert server.env == {"OMP_NUM_THREADS": "4"}
    assert server.extra_args == ("--block-size", "32")


def test_fewer_than_two_blocks_give_no_interval_and_are_refused() -> None:
    with pytest.raises(ValidationError, match="num_blocks"):
        Workload(max_concurrency=(1,), num_blocks=1)
    with pytest.raises(ValidationError, match="min_blocks"):
        SelectionRules(min_blocks=1)


def test_bandwidth_is_rate_times_eight_bytes_times_channels() -> None:
    hardware = Hardware(name="h", memory_mt_per_s=7200, memory_channels=12)

    assert hardware.memory_bandwidth_gb_per_s == pytest.approx(691.2)


def test_bandwidth_of_unknown_memory_is_missing_not_zero() -> None:
    assert Hardware(name="h", memory_mt_per_s=7200).memory_bandwidth_gb_per_s is None


def test_space_takes_one_value_or_many_and_lists_what_varies() -> None:
    space = Space.model_validate({"max_num_seqs": 32, "omp_threads_bind": [0, "nobind"]})

    assert space.axes == {"omp_threads_bind": ("0", "nobind"), "max_num_seqs": (32,)}
    assert Space().axes == {}


@pytest.mark.parametrize("space", [{"max_num_seqs": [16, 16]}, {"enforce_eager": [True, True]}])
def test_value_given_twice_is_refused(space: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="repeats a value"):
        Space.model_validate(space)


def test_space_is_refused_where_it_cannot_be_searched_or_nothing_would_vary() -> None:
    speculation = {"method": "dflash", "num_speculative_tokens": [1]}
    varied = SWEEP | {"space": {"max_num_seqs": [16, 32]}, "speculation": speculation}
    for strategy in ("grid", "optuna"):
        SweepConfig.model_validate(varied | {"search": {"strategy": strategy}})

    with pytest.raises(ValidationError, match=r"cannot search space\.max_num_seqs; use search=optuna, or search=grid"):
        SweepConfig.model_validate(varied | {"search": {"strategy": "adaptive"}})
    with pytest.raises(ValidationError, match=r"space\.max_num_seqs: only arms with speculation vary"):
        SweepConfig.model_validate(varied | {"speculation": {"method": "none"}})


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"strategy": "grid", "num_proposals": 5}, "num_proposals: only search=optuna reads it, but search is grid"),
        ({"strategy": "optuna", "min_expected_gain": 0.1}, "min_expected_gain: only search=adaptive reads it"),
        ({"strategy": "adaptive", "num_proposals": 5}, "num_proposals: only search=optuna reads it"),
    ],
)
def test_key_that_the_search_would_ignore_is_refused(search: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Search.model_validate(search)


# --- traffic, objectives, search


def test_traffic_takes_yamls_keys_and_leaves_out_levels_at_will() -> None:
    workload = Workload.model_validate({"max_concurrency": [1, 4, 16], "traffic": {"1": 0.25, "16": 0.75}})

    assert workload.traffic == {1: 0.25, 16: 0.75}


def test_traffic_at_a_level_that_is_not_measured_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"names concurrency \[8\], but max_concurrency measures \[1, 4\]"):
        Workload(max_concurrency=(1, 4), traffic={1: 0.5, 8: 0.5})


@pytest.mark.parametrize(("shares", "total"), [((0.5, 0.4), "0.9"), ((50, 50), "100"), ((0, 0), "0")])
def test_traffic_whose_shares_do_not_add_up_to_one_is_refused(shares: tuple[float, float], total: str) -> None:
    with pytest.raises(ValidationError, match=f"must add up to 1, but add up to {total}"):
        Workload(max_concurrency=(1, 4), traffic=dict(zip((1, 4), shares, strict=True)))


def test_negative_share_of_traffic_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Workload(max_concurrency=(1, 4), traffic={1: 1.5, 4: -0.5})


def test_goodput_needs_limits_to_count_by() -> None:
    with pytest.raises(ValidationError, match="objective 'goodput' needs slo"):
        SelectionRules(objective="goodput")
    assert SelectionRules(objective="goodput", slo=Slo(ttft_s=0.5)).slo == Slo(ttft_s=0.5)


def test_limits_without_any_limit_are_refused_and_constraints_ask_for_nothing_by_default() -> None:
    with pytest.raises(ValidationError, match="needs at least one of ttft_s, tpot_s, e2e_s"):
        Slo()
    assert SelectionRules().constraints == Constraints()


@pytest.mark.parametrize("key", ["ttft_p95_s", "tpot_p95_s", "e2e_p95_s"])
def test_limit_of_zero_seconds_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        Constraints.model_validate({key: 0})


def test_grid_takes_what_a_confirmation_reads() -> None:
    assert Search(confirm=False).strategy == Search(first_blocks=5).strategy == "grid"


OPEN = {"arrival": "poisson", "request_rate": [2, 4.5]}


def open_loop(**changes: object) -> SweepConfig:
    beside = {"search": {"strategy": "grid"}, "selection": {"objective": "e2e"}}
    return SweepConfig.model_validate(SWEEP | beside | {"workload": OPEN} | changes)


def test_levels_are_those_of_the_arrival() -> None:
    assert open_loop().workload.levels == (2, 4.5)
    assert Workload(max_concurrency=(1, 4)).levels == (1, 4)
    assert Workload(arrival="log").levels == (1,)
    assert Workload.model_validate({"arrival": "log", "log_speed": 2}).levels == (2,)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({}, "arrival=closed needs at least one value in max_concurrency"),
        ({"arrival": "constant"}, "arrival=constant needs at least one value in request_rate"),
        (
            OPEN | {"max_concurrency": 4},
            r"max_concurrency does nothing with arrival=poisson.*workload\.max_concurrency=\[\]",
        ),
        ({"max_concurrency": 4, "log_speed": 2}, "log_speed does nothing with arrival=closed"),
        (OPEN | {"request_rate": [0]}, "greater than 0"),
        (OPEN | {"traffic": {"2": 0.5, "3": 0.5}}, r"traffic names request rate \[3\], but request_rate measures"),
    ],
)
def test_load_that_is_missing_or_does_nothing_is_refused(workload: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Workload.model_validate(workload)


@pytest.mark.parametrize("objective", ["throughput", "cost"])
def test_open_loop_is_not_judged_by_a_throughput_that_the_requests_fix(objective: str) -> None:
    hardware = {"name": "local", "usd_per_hour": 1}
    with pytest.raises(ValidationError, match=r"decides nothing.*use selection=latency, or .*tpot, e2e, or goodput"):
        open_loop(selection={"objective": objective}, hardware=hardware)


def test_both_faults_of_an_open_loop_are_told_at_once() -> None:
    with pytest.raises(ValidationError, match=r"decides nothing.*; and search=adaptive predicts"):
        open_loop(search={"strategy": "adaptive"}, selection={})


def test_search_that_predicts_at_a_concurrency_refuses_an_open_loop() -> None:
    with pytest.raises(ValidationError, match=r"arrival=poisson search=adaptive predicts.*use search=grid"):
        open_loop(search={"strategy": "adaptive"})


@pytest.mark.parametrize("more", [{}, {"arrival_field": "at", "turns": "last", "num_prompts": 9}])
def test_replay_needs_a_whole_log(more: dict[str, object]) -> None:
    datasets = {"log": {"data_files": "log.jsonl", **more}}
    with pytest.raises(ValidationError, match=r"it needs datasets\.log\.arrival_field, and no num_prompts"):
        open_loop(workload={"arrival": "log"}, datasets=datasets)


def test_log_is_a_local_file_of_whole_requests() -> None:
    with pytest.raises(ValidationError, match="arrival_field makes it a request log"):
        Dataset(data_files="log.jsonl", arrival_field="at")


def test_one_bucket_stands_for_a_list_of_one_and_an_empty_one_is_refused() -> None:
    assert Workload.model_validate({"max_concurrency": 1, "prompt_tokens": [0, 512]}).prompt_tokens == ((0, 512),)
    for bad in ([[512, 512]], [[0, 9], [0, 9]], [[-1, 9]]):
        with pytest.raises(ValidationError):
            Workload.model_validate({"max_concurrency": 1, "prompt_tokens": bad})


FLEET: dict[str, object] = {
    "region": "us-east-1",
    "head_image": "own/head:1",
    "worker_image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/own/worker@sha256:00ff",
    "sizes": {"default": {"desired_size": 1, "max_size": 4}, "big": {"desired_size": 0, "max_size": 1}},
    "ttl_hours": 4,
    "max_hours": 24,
    "head_usd_per_hour": 0.1,
    "network_usd_per_hour": 0.05,
}


def test_fleet_has_a_size_for_every_profile_and_another_for_the_named_one() -> None:
    fleet = Fleet.model_validate(FLEET)

    assert fleet.size_of("small") == FleetSize(desired_size=1, max_size=4)
    assert fleet.size_of("big") == FleetSize(desired_size=0, max_size=1)
    assert Fleet.model_validate(FLEET | {"sizes": {"big": fleet.sizes["big"]}}).size_of("small") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a; rm -rf /"}, "name"),
        ({"region": "us-east-1$(id)"}, "region"),
        ({"worker_image": "own/worker:1 --privileged"}, "worker_image"),
        ({"model_mirror": "s3://bucket/a b"}, "model_mirror"),
        ({"spot_percentage": 101}, "spot_percentage"),
        ({"sizes": {}}, "sizes"),
        ({"sizes": {"default": {"desired_size": 5, "max_size": 4}}}, "desired_size must be at most max_size=4"),
        ({"ttl_hours": 25}, "ttl_hours must be at most max_hours=24, but got 25"),
        ({"spot_share": 0.5}, "spot_share"),
    ],
)
def test_fleet_that_cannot_be_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Fleet.model_validate(FLEET | change)
