"""The load client and the counters against the stand-in server, over real sockets."""

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest

from orchestrator import metrics
from orchestrator.records import Message, Prompt, WorkloadCell
from tasks.counters import delta, read_counters
from tasks.load import LoadResult, Target, run_load, summarise, void_reason
from tests.standin import COMMAND, StandIn, free_port, standin
from tests.standin.server import expected_speedup, token_ids

KEY = "sk-test"
SPECULATION = ("--speculative-config", '{"method": "dflash", "model": "d", "num_speculative_tokens": 7}')


def cell(**changes: object) -> WorkloadCell:
    values: dict[str, object] = {
        "id": "w",
        "name": "code@c4",
        "dataset": "code",
        "max_concurrency": 4,
        "output_len": 32,
        "ignore_eos": True,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 0,
        "chat_template_kwargs": {},
        "request_timeout_s": 10.0,
    }
    return WorkloadCell.model_validate(values | changes)


def prompts(count: int, word: str = "code") -> list[tuple[int, Prompt]]:
    """Indices that are not positions, so that a mix-up shows."""
    return [
        (100 + 7 * i, Prompt(messages=(Message(role="user", content=f"write {word} number {i}"),)))
        for i in range(count)
    ]


def load(server: StandIn, count: int, key: str | None = None, **changes: object) -> LoadResult:
    return run_load(Target(base_url=server.base_url, api_key=key, model=server.model), prompts(count), cell(**changes))


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with standin(*SPECULATION, api_key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def plain() -> Iterator[StandIn]:
    with standin() as running:
        yield running


def test_every_prompt_is_sent_once_and_recorded_in_order(server: StandIn) -> None:
    before = server.gauge("standin:num_requests_total")
    result = load(server, 10, KEY)
    assert [request.prompt_index for request in result.requests] == [100 + 7 * i for i in range(10)]
    assert server.gauge("standin:num_requests_total") - before == 10
    assert len({request.output_sha256 for request in result.requests}) == 10


def test_concurrency_is_reached_and_never_exceeded() -> None:
    with standin() as fresh:
        load(fresh, 12, max_concurrency=3)
        assert fresh.gauge("standin:peak_requests_running") == 3
        assert fresh.gauge("vllm:num_requests_running") == 0


def test_tokens_are_counted_from_usage_and_agree_with_the_engines_counters(server: StandIn) -> None:
    before = read_counters(server.base_url, KEY, timeout_s=5)
    result = load(server, 8, KEY)
    counters = delta(before, read_counters(server.base_url, KEY, timeout_s=5))
    summary = summarise(result.requests, cell())
    assert summary.void_reason is None
    assert summary.output_tokens == 8 * 32 == counters.generation_tokens
    assert summary.prompt_tokens == 8 * 4


def test_counters_of_a_load_give_the_k_and_the_acceptance_of_the_simulation(server: StandIn) -> None:
    before = read_counters(server.base_url, KEY, timeout_s=5)
    load(server, 16, KEY, max_concurrency=8, output_len=256)
    spec = delta(before, read_counters(server.base_url, KEY, timeout_s=5)).spec
    assert spec is not None
    assert metrics.tokens_per_draft(spec) == 7
    assert metrics.acceptance_length(spec) == pytest.approx((1 - 0.95**8) / 0.05, rel=0.05)


def test_baseline_server_has_no_spec_counters(plain: StandIn) -> None:
    assert read_counters(plain.base_url, None, timeout_s=5).spec is None


def test_outputs_are_equal_with_and_without_speculation(server: StandIn, plain: StandIn) -> None:
    ours, theirs = (load(s, 4, key).requests for s, key in ((server, KEY), (plain, None)))
    assert [request.output_sha256 for request in ours] == [request.output_sha256 for request in theirs]
    assert [request.output_token_ids for request in ours] == [request.output_token_ids for request in theirs]
    assert {len(request.output_token_ids or ()) for request in ours} == {32}


def test_speculation_carries_several_tokens_a_chunk(server: StandIn, plain: StandIn) -> None:
    assert len(load(plain, 1).requests[0].chunk_s) == 32
    assert len(load(server, 1, KEY).requests[0].chunk_s) < 16


def test_times_of_a_request_are_in_order_and_within_the_wall_time(plain: StandIn) -> None:
    result = load(plain, 8)
    for request in result.requests:
        assert request.first_token_s == request.chunk_s[0]
        times = (request.sent_s, *request.chunk_s, request.end_s)
        assert list(times) == sorted(times)
    assert result.wall_s >= max(request.end_s - request.sent_s for request in result.requests)
    # 8 requests of 32 steps of 2 ms and more, 4 at a time
    assert result.wall_s > 2 * 32 * 0.002


def test_load_runs_in_a_thread_beside_others(plain: StandIn) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: load(plain, 2), range(2)))
    assert [void_reason(result.requests, cell()) for result in results] == [None, None]


def test_client_tells_how_many_cores_it_takes(plain: StandIn) -> None:
    assert 0 < load(plain, 8).client_cpu_cores < 1


def test_failed_requests_are_recorded_and_the_others_go_on() -> None:
    with standin("--standin-fail-every", "4") as failing:
        result = load(failing, 8)
    assert [request.error is None for request in result.requests].count(False) == 2
    reason = void_reason(result.requests, cell())
    assert reason == "2 of 8 requests failed: HTTP 500 stand-in failure asked for by --standin-fail-every"


def test_short_answers_make_the_block_void() -> None:
    with standin("--standin-short") as stopping:
        result = load(stopping, 2)
    reason = void_reason(result.requests, cell())
    assert reason == "2 of 2 requests ended short: 16 of 32 output tokens (finish_reason stop)"


def test_wrong_api_key_is_an_error_and_not_an_exception(server: StandIn) -> None:
    reason = void_reason(load(server, 2, "sk-wrong").requests, cell())
    assert reason == "2 of 2 requests failed: HTTP 401 Unauthorized"
    assert "sk-wrong" not in reason


def test_request_that_takes_too_long_is_cut_off_and_keeps_its_chunks() -> None:
    with standin("--standin-step-ms", "100") as slow:
        started = time.monotonic()
        result = load(slow, 1, request_timeout_s=0.5)
    assert time.monotonic() - started < 3
    assert result.requests[0].error == "timed out: no end within 0.5 s"
    assert result.requests[0].chunk_s


def test_server_that_dies_in_mid_load_fails_the_rest_quickly() -> None:
    with standin("--standin-die-after", "3") as dying:
        result = load(dying, 8, max_concurrency=1)
        assert dying.process.wait(timeout=5) == 1
    errors = [request.error for request in result.requests]
    assert errors[:3] == [None] * 3
    assert None not in errors[3:]
    assert void_reason(result.requests, cell()) is not None


def test_load_of_nothing_is_refused() -> None:
    target = Target(base_url="http://127.0.0.1:1", api_key=None, model="m")
    with pytest.raises(ValueError, match="at least one prompt"):
        run_load(target, [], cell())


def test_stand_in_can_lie_about_k() -> None:
    with standin(*SPECULATION, "--standin-tokens-per-draft", "3") as lying:
        load(lying, 1)
        spec = read_counters(lying.base_url, None, timeout_s=5).spec
    assert spec is not None
    assert metrics.tokens_per_draft(spec) == 3


@pytest.mark.parametrize(("word", "best_k"), [("code", 15), ("math", 7), ("chat", 0)])
def test_stand_in_has_a_known_best_k_per_workload(word: str, best_k: int) -> None:
    speedups = {k: expected_speedup(f"a {word} prompt", k, max_concurrency=1) for k in (0, 1, 3, 7, 15)}
    assert max(speedups, key=speedups.__getitem__) == best_k
    runner_up = max(value for k, value in speedups.items() if k != best_k)
    assert speedups[best_k] > 1.1 * runner_up


def run_standin(*flags: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "serve", "m", "--port", str(free_port()), "--dtype", "bfloat16", *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_stand_in_can_die_at_start_with_a_traceback() -> None:
    with run_standin("--standin-die-at-start", "drafter 'x' not found") as process:
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert output.rstrip().endswith("ValueError: drafter 'x' not found")


@pytest.mark.parametrize(
    ("flags", "stated"),
    [
        ((), "speculative_config=None,"),
        (SPECULATION, "speculative_config=SpeculativeConfig(method='dflash', model='d', num_spec_tokens=7),"),
    ],
)
def test_stand_in_states_its_configuration_as_vllm_does(flags: tuple[str, ...], stated: str) -> None:
    with run_standin(*flags) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert "Initializing a V1 LLM engine (v0.32.0) with config: model='m', " in line
    assert stated in line


def ask(index: int, **fields: object) -> Prompt:
    message = Message(role="user", content=f"write code number {index}")
    return Prompt.model_validate({"messages": (message,)} | fields)


def drive(
    server: StandIn, asked: list[Prompt], due_s: tuple[float, ...] | None = None, **changes: object
) -> LoadResult:
    target = Target(base_url=server.base_url, api_key=None, model=server.model)
    return run_load(target, list(enumerate(asked)), cell(**changes), due_s)


def test_next_turn_has_the_models_own_answer_in_its_context(plain: StandIn) -> None:
    talk = ask(0, later_turns=("and shorter?", "and longer?"))

    first, second, third = drive(plain, [talk], output_len=8).requests

    assert [(r.prompt_index, r.turn, r.error) for r in (first, second, third)] == [(0, t, None) for t in range(3)]
    context = talk.messages[0].content
    for request, follow_up in ((first, "and shorter?"), (second, "and longer?"), (third, "")):
        ids = token_ids(context, 8)
        assert request.output_token_ids == tuple(ids)
        context = "\n".join([context, "".join(f" w{token}" for token in ids), follow_up])


def test_conversation_takes_one_stream_and_its_turns_follow_each_other() -> None:
    with standin() as fresh:
        result = drive(fresh, [ask(i, later_turns=("more",)) for i in range(4)], max_concurrency=2, output_len=8)
        assert fresh.gauge("standin:peak_requests_running") == 2
    assert [(r.prompt_index, r.turn) for r in result.requests] == [(i, t) for i in range(4) for t in range(2)]
    for first, second in zip(result.requests[::2], result.requests[1::2], strict=True):
        assert second.sent_s >= first.end_s
    assert summarise(result.requests, cell(output_len=8)).output_tokens == 4 * 2 * 8


def test_turn_that_fails_ends_its_conversation_and_voids_the_block() -> None:
    with standin("--standin-fail-after", "1") as failing:
        result = drive(failing, [ask(0, later_turns=("b", "c"))], output_len=8)
    assert [request.error is None for request in result.requests] == [True, False]
    assert void_reason(result.requests, cell(output_len=8)) is not None


def test_open_loop_sends_when_due_however_many_are_under_way() -> None:
    due = tuple(0.05 * index for index in range(12))
    with standin("--standin-step-ms", "20") as slow:
        result = drive(
            slow, [ask(i) for i in range(12)], due, arrival="constant", max_concurrency=None, request_rate=20
        )
        assert slow.gauge("standin:peak_requests_running") > 8
    assert [request.due_s for request in result.requests] == list(due)
    lateness = [request.sent_s - at for request, at in zip(result.requests, due, strict=True)]
    assert min(lateness) >= 0
    assert median(lateness) < 0.02  # a busy machine wakes late; the strict figure is in docs/results/log_replay.md


def test_latency_of_an_open_loop_counts_from_when_a_request_was_due(plain: StandIn) -> None:
    result = drive(
        plain, [ask(i) for i in range(8)], tuple(0.02 * i for i in range(8)), max_concurrency=None, request_rate=50
    )

    summary = summarise(result.requests, cell(max_concurrency=None, request_rate=50))

    assert summary.open_loop is not None
    assert summary.open_loop.offered_requests_per_s == pytest.approx(50)
    for request, e2e_s in zip(result.requests, summary.e2e_s, strict=True):
        assert e2e_s == request.chunk_s[-1] - (request.due_s or 0.0)


def test_logged_request_asks_for_its_own_length_and_is_short_only_by_that(plain: StandIn) -> None:
    result = drive(plain, [ask(0, max_tokens=5), ask(1)])

    assert [request.output_tokens for request in result.requests] == [5, 32]
    assert void_reason(result.requests, cell()) is None


def test_natural_length_is_no_fault_and_says_why_it_ended() -> None:
    with standin("--standin-short") as stopping:
        result = load(stopping, 2, ignore_eos=False)
    assert [(r.finish_reason, r.output_tokens) for r in result.requests] == [("stop", 16)] * 2
    assert void_reason(result.requests, cell(ignore_eos=False)) is None


def test_sampling_has_a_seed_of_its_own_for_every_request_and_the_same_for_every_arm(
    plain: StandIn, server: StandIn
) -> None:
    same = Prompt(messages=(Message(role="user", content="write code"),))
    target = Target(base_url=plain.base_url, api_key=None, model=plain.model)
    speculating = Target(base_url=server.base_url, api_key=KEY, model=server.model)

    def sampled(where: Target, **changes: object) -> list[str | None]:
        found = run_load(where, [(0, same), (1, same)], cell(temperature=0.8, **changes))
        return [request.output_sha256 for request in found.requests]

    first = sampled(target)
    assert first[0] != first[1]
    assert first == sampled(target) == sampled(speculating)
    assert set(first).isdisjoint(sampled(target, seed=1))
