import pytest

from orchestrator.errors import ServerError
from orchestrator.records import SpecCounters
from tasks.counters import EngineCounters, delta, parse_counters, read_counters
from tests.standin import free_port

COMMON = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 24.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7959756289163363e+09
vllm:num_preemptions_total{engine="0",model_name="m"} 0.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 29.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 16.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 3.0
process_cpu_seconds_total 12.5
"""


def spec_series(engine: int, drafts: int, drafted: int, accepted: int, per_pos: dict[int, int]) -> str:
    labels = f'engine="{engine}",model_name="m"'
    lines = [
        f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}.0",
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafted}.0",
        f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {accepted}.0",
    ]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{name}{{{labels},position="{i}"}} {value}.0' for i, value in per_pos.items()]
    return "\n".join(lines) + "\n"


def counters(drafts: int = 0, per_pos: tuple[int, ...] = (0, 0), generated: int | None = 0) -> EngineCounters:
    spec = SpecCounters(
        num_drafts=drafts,
        num_draft_tokens=drafts * len(per_pos),
        num_accepted_tokens=sum(per_pos),
        num_accepted_tokens_per_pos=per_pos,
    )
    return EngineCounters(
        spec=spec, prefix_cache_hits=0, prefix_cache_queries=0, num_preemptions=0, generation_tokens=generated
    )


def test_baseline_without_spec_decode_series_has_no_spec_counters() -> None:
    parsed = parse_counters(COMMON)
    assert parsed.spec is None
    assert parsed == EngineCounters(
        spec=None, prefix_cache_hits=16, prefix_cache_queries=29, num_preemptions=0, generation_tokens=24
    )


def test_series_that_the_server_does_not_expose_are_missing_and_not_zero() -> None:
    parsed = parse_counters("process_cpu_seconds_total 12.5\n")
    assert parsed.generation_tokens is None
    assert parsed.prefix_cache_hits is None


def test_drafts_of_zero_are_counters_and_not_missing() -> None:
    parsed = parse_counters(COMMON + spec_series(0, 0, 0, 0, {0: 0, 1: 0}))
    assert parsed.spec == counters().spec


def test_counters_of_several_engines_are_summed() -> None:
    parsed = parse_counters(spec_series(0, 10, 20, 9, {0: 6, 1: 3}) + spec_series(1, 5, 10, 4, {0: 3, 1: 1}))
    assert parsed.spec == SpecCounters(
        num_drafts=15, num_draft_tokens=30, num_accepted_tokens=13, num_accepted_tokens_per_pos=(9, 4)
    )


def test_position_10_comes_after_9() -> None:
    as_text = dict(sorted(((i, 100 - i) for i in range(12)), key=lambda item: str(item[0])))
    parsed = parse_counters(spec_series(0, 100, 1200, 1134, as_text))
    assert parsed.spec is not None
    assert parsed.spec.num_accepted_tokens_per_pos == tuple(100 - i for i in range(12))


def test_delta_is_after_minus_before_in_every_field() -> None:
    difference = delta(counters(10, (6, 3), generated=19), counters(25, (15, 7), generated=47))
    assert difference == counters(15, (9, 4), generated=28)


def test_delta_of_missing_is_missing() -> None:
    nothing = parse_counters("")
    assert delta(nothing, nothing) == nothing


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (counters(9, (6, 3)), "num_drafts went from 10 to 9"),
        (counters(10, (6, 2)), "went from 9 to 8"),
        (counters(10, (6, 3), generated=-1), "generation_tokens went from 0 to -1"),
        (counters(10, (6, 3), generated=None), "generation_tokens went from 0 to None"),
        (counters(10, (6, 3, 0)), "number of draft positions went from 2 to 3"),
        (parse_counters(COMMON), "spec_decode series"),
    ],
)
def test_counters_that_went_backwards_or_away_mean_that_the_server_restarted(
    after: EngineCounters, message: str
) -> None:
    with pytest.raises(ServerError, match=message) as caught:
        delta(counters(10, (6, 3)), after)
    assert "the server restarted" in str(caught.value)


def test_a_server_that_does_not_answer_is_named_in_the_error() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerError, match=f"{url}/metrics"):
        read_counters(url, None, timeout_s=1)
