"""A request log: its order, its times, its limits, and what makes a line unusable."""

import json
from pathlib import Path

import pytest

from tasks.request_log import read_log

ASK = {"messages": [{"role": "user", "content": "hi"}]}


def log(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def arrivals(path: Path) -> list[float | None]:
    return [prompt.arrival_s for prompt in read_log(path, "messages", "timestamp")]


def test_times_count_from_the_first_request_and_put_lines_in_order(tmp_path: Path) -> None:
    rows = [ASK | {"timestamp": time} for time in (1700000002.5, "1700000000", 1700000001)]

    assert arrivals(log(tmp_path / "log.jsonl", *rows)) == [0, 1, 2.5]


def test_iso_times_may_name_a_zone_or_none(tmp_path: Path) -> None:
    times = ("2026-08-01T10:00:00Z", "2026-08-01T12:00:00.250+02:00", "2026-08-01T10:00:01")

    assert arrivals(log(tmp_path / "log.jsonl", *(ASK | {"timestamp": time} for time in times))) == [0, 0.25, 1]


def test_request_may_lie_in_a_body_and_bring_its_own_length(tmp_path: Path) -> None:
    row = {"body": ASK | {"max_tokens": 7}, "timestamp": 0, "url": "/v1/chat/completions"}
    newer = {"timestamp": 1, "max_completion_tokens": 9} | ASK

    prompts = read_log(log(tmp_path / "log.jsonl", row, newer, ASK | {"timestamp": 2}), "messages", "timestamp")

    assert [prompt.max_tokens for prompt in prompts] == [7, 9, None]
    assert {prompt.messages[0].content for prompt in prompts} == {"hi"}


def test_whole_history_is_sent_and_lines_may_differ_in_form(tmp_path: Path) -> None:
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "parts"}]}], "timestamp": 0}
    history = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        "timestamp": 1,
    }

    prompts = read_log(log(tmp_path / "log.jsonl", parts, history), "messages", "timestamp")

    assert [[message.content for message in prompt.messages] for prompt in prompts] == [["parts"], ["a", "b", "c"]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "line 2: is not a JSON object"),
        ({"timestamp": 1}, r"line 2: has no text by a user in 'messages' \(nor in 'body\.messages'\)"),
        (ASK, "line 2: has no time in 'timestamp'.*set arrival_field"),
        (ASK | {"timestamp": "noon"}, "line 2: has no time in 'timestamp'.*got 'noon'"),
        (ASK | {"timestamp": True}, "line 2: has no time"),
        (ASK | {"timestamp": 1.7e12}, "line 2: 'timestamp' must be in seconds.*milliseconds"),
        (ASK | {"timestamp": "nan"}, "line 2: 'timestamp' must be in seconds"),
        (ASK | {"timestamp": 1, "max_tokens": 0}, "line 2: max_tokens must be a positive whole number, but got 0"),
        (ASK | {"timestamp": 1, "max_tokens": -3}, "line 2: max_tokens must be a positive whole number, but got -3"),
    ],
)
def test_unusable_line_is_named(tmp_path: Path, row: object, message: str) -> None:
    path = log(tmp_path / "log.jsonl", ASK | {"timestamp": 0}, row)
    with pytest.raises(ValueError, match=message):
        read_log(path, "messages", "timestamp")
