"""The client's reading of a stream, and what makes a block void."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ids import canonical_json, text_sha256
from orchestrator.records import RequestRecord, WorkloadCell
from tasks.load import itl_percentiles, summarise, void_reason
from tasks.stream import Stream, error_message, read_stream

CELL = WorkloadCell(
    id="w",
    name="code@c1",
    dataset="code",
    max_concurrency=1,
    output_len=8,
    ignore_eos=True,
    temperature=0,
    top_p=1,
    seed=0,
    chat_template_kwargs={},
    request_timeout_s=5,
)
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 29, "total_tokens": 34, "completion_tokens": 5}}


def tokens(*ids: int, text: str = "x", finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish, "token_ids": list(ids)}]}


def text_only(**delta: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def sse(*events: object) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


DONE = b"data: [DONE]\n\n"
ANSWER = (
    sse(ROLE | {"prompt_token_ids": [1, 2]}, tokens(983), tokens(5, 6, 7), tokens(2, finish="length"), USAGE) + DONE
)


def record(index: int = 0, *, chunk_s: tuple[float, ...] = (0.1, 0.3), output_tokens: int = 8) -> RequestRecord:
    return RequestRecord(
        prompt_index=index,
        sent_s=0.0,
        first_token_s=chunk_s[0],
        chunk_s=chunk_s,
        end_s=1.0,
        prompt_tokens=10,
        output_tokens=output_tokens,
        finish_reason="length",
        output_sha256=f"sha{index}",
    )


def failed(index: int, error: str) -> RequestRecord:
    return RequestRecord(prompt_index=index, sent_s=0.0, end_s=0.5, error=error)


def test_role_only_first_chunk_is_not_the_first_token() -> None:
    stream = read_stream([(0.1, sse(ROLE)), (0.5, sse(tokens(983))), (0.6, sse(USAGE) + DONE)])
    assert stream.chunk_s == [0.5]


def test_several_events_in_one_piece_arrive_together() -> None:
    stream = read_stream([(0.2, ANSWER)])
    assert stream.chunk_s == [0.2, 0.2, 0.2]
    assert stream.fault() is None


def test_an_event_split_over_pieces_arrives_with_its_last_piece() -> None:
    event = sse(tokens(983))
    stream = read_stream([(0.1, sse(ROLE) + event[:20]), (0.2, event[20:40]), (0.3, event[40:])])
    assert stream.chunk_s == [0.3]
    assert stream.token_ids == [983]


@given(st.lists(st.integers(0, len(ANSWER)), max_size=12))
def test_the_answer_does_not_depend_on_how_tcp_cuts_the_stream(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(ANSWER)]
    stream = read_stream([(float(i), ANSWER[a:b]) for i, (a, b) in enumerate(pairwise(edges))])
    assert stream.token_ids == [983, 5, 6, 7, 2]
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (29, 5)
    assert (stream.finish_reason, len(stream.chunk_s), stream.fault()) == ("length", 3, None)


def test_multi_byte_text_cut_within_a_character_stays_whole() -> None:
    data = b"data: " + json.dumps(text_only(content="héllo"), ensure_ascii=False).encode() + b"\n\n"
    middle = data.index("é".encode()) + 1
    assert read_stream([(0.1, data[:middle]), (0.2, data[middle:])]).text == "héllo"


def test_carriage_returns_and_comments_are_not_data() -> None:
    stream = read_stream([(0.1, b": ping\r\n\r\n" + ANSWER.replace(b"\n", b"\r\n"))])
    assert (stream.token_ids, stream.fault()) == ([983, 5, 6, 7, 2], None)


@pytest.mark.parametrize("delta", [{"content": "a"}, {"reasoning": "a"}, {"reasoning_content": "a"}])
def test_without_token_ids_text_or_reasoning_is_a_token(delta: dict[str, str]) -> None:
    stream = read_stream([(0.1, sse(ROLE)), (0.2, sse(text_only(**delta)))])
    assert (stream.chunk_s, stream.text) == ([0.2], "a")


def test_token_ids_without_text_are_tokens() -> None:
    assert read_stream([(0.4, sse(tokens(1, text="")))]).chunk_s == [0.4]


def test_missing_usage_is_a_fault() -> None:
    assert read_stream([(0.1, sse(ROLE, tokens(1)) + DONE)]).fault() == "the stream ended without usage"


def test_stream_without_tokens_is_a_fault() -> None:
    assert read_stream([(0.1, sse(ROLE, USAGE) + DONE)]).fault() == "the stream carried no token"


def test_error_event_is_a_fault_with_the_servers_message() -> None:
    stream = read_stream([(0.1, sse(ROLE, tokens(1), {"error": {"message": "EngineDead", "code": 500}}) + DONE)])
    assert stream.fault() == "error in the stream: EngineDead"
    assert stream.chunk_s == [0.1]


def test_aborted_request_is_a_fault() -> None:
    stream = read_stream([(0.1, sse(tokens(1, finish="abort"), USAGE) + DONE)])
    assert stream.fault() == "the server ended the request with finish_reason abort"


@pytest.mark.parametrize("data", [b"data: {oops\n\n", b'data: {"choices": 3}\n\n', b"data: []\n\n"])
def test_garbage_is_a_fault_and_not_an_exception(data: bytes) -> None:
    assert (read_stream([(0.1, data)]).fault() or "").startswith("not a completion event")


def test_output_hash_is_of_the_token_ids_where_there_are_any() -> None:
    assert read_stream([(0.1, ANSWER)]).sha256 == text_sha256(canonical_json([983, 5, 6, 7, 2]))
    assert Stream(text="hello").sha256 == text_sha256("hello")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b"<html>\n bad\tgateway</html>", "<html> bad gateway</html>"),
        (b"[1]", "[1]"),
        (b"x" * 500, "x" * 197 + "..."),
    ],
)
def test_error_message_is_short_and_on_one_line(body: bytes, message: str) -> None:
    assert error_message(body) == message


def test_summary_times_run_from_send_to_first_and_last_token() -> None:
    summary = summarise([record(chunk_s=(0.1, 0.3, 0.8))], CELL)
    assert summary.ttft_s == (0.1,)
    assert summary.e2e_s == (0.8,)
    assert summary.tpot_s == pytest.approx((0.1,))


def test_summary_sums_tokens_of_usage_and_keeps_hashes_in_order() -> None:
    summary = summarise([record(0), record(1)], CELL)
    assert (summary.num_requests, summary.prompt_tokens, summary.output_tokens) == (2, 20, 16)
    assert summary.output_sha256 == ("sha0", "sha1")
    assert summary.void_reason is None


def test_request_of_one_token_has_no_tpot() -> None:
    summary = summarise([record(chunk_s=(0.1,), output_tokens=1)], CELL.model_copy(update={"output_len": 1}))
    assert (summary.tpot_s, summary.ttft_s) == ((None,), (0.1,))


def test_failed_request_leaves_no_times_but_keeps_its_place() -> None:
    summary = summarise([failed(0, "HTTP 500 boom"), record(1)], CELL)
    assert (len(summary.ttft_s), summary.output_tokens, summary.output_sha256) == (1, 8, ("", "sha1"))
    assert summary.void_reason == "1 of 2 requests failed: HTTP 500 boom"


def test_itl_percentiles_are_over_the_gaps_of_all_requests() -> None:
    percentiles = itl_percentiles([(0.0, 1.0, 2.0), (5.0, 8.0), (9.0,)])
    assert percentiles == pytest.approx({"p50": 1.0, "p95": 2.8, "p99": 2.96})


def test_itl_without_a_gap_is_empty_and_not_zero() -> None:
    assert itl_percentiles([(1.0,)]) == {}
    assert itl_percentiles([]) == {}


def test_block_with_a_failed_request_is_void_and_quotes_the_first_error() -> None:
    requests = [record(0), failed(1, "HTTP 500 boom"), failed(2, "timed out")]
    assert void_reason(requests, CELL) == "2 of 3 requests failed: HTTP 500 boom"


def test_block_with_a_short_request_is_void_where_eos_is_ignored() -> None:
    reason = void_reason([record(0), record(1, output_tokens=4)], CELL)
    assert reason == "1 of 2 requests ended short: 4 of 8 output tokens (finish_reason length)"


def test_short_request_counts_where_the_model_may_stop() -> None:
    assert void_reason([record(0, output_tokens=4)], CELL.model_copy(update={"ignore_eos": False})) is None


def test_block_without_requests_is_void() -> None:
    assert void_reason([], CELL) == "no request was sent"
