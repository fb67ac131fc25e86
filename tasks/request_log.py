"""A log of OpenAI chat requests: JSON lines with `messages` (or `body.messages`) and the time each one arrived."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.records import Prompt
from tasks.conversation import prompts_of, read_conversation

LATEST_S = 1e11
"""Seconds since 1970 in the year 5138: a larger number is not in seconds."""


def read_log(path: Path, prompt_field: str, arrival_field: str) -> list[Prompt]:
    """Every request as it was, by time of arrival from the first one. Read line by line: columns of logs vary in type.

    Raises:
        ValueError: a line is no JSON object, lacks messages, or has no time.
    """
    arrived = sorted(_requests(path, prompt_field, arrival_field), key=lambda pair: pair[0])
    return [prompt.model_copy(update={"arrival_s": at_s - arrived[0][0]}) for at_s, prompt in arrived]


def _requests(path: Path, prompt_field: str, arrival_field: str) -> Iterator[tuple[float, Prompt]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield _request(json.loads(line), prompt_field, arrival_field)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error


def _request(row: object, prompt_field: str, arrival_field: str) -> tuple[float, Prompt]:
    if not isinstance(row, Mapping):
        raise ValueError("is not a JSON object")
    body = row.get("body") if prompt_field not in row and isinstance(row.get("body"), Mapping) else row
    prompts = prompts_of(read_conversation(value_at(body, prompt_field)), "last")
    if not prompts:
        raise ValueError(f"has no text by a user in {prompt_field!r} (nor in 'body.{prompt_field}')")
    newer = value_at(body, "max_completion_tokens")
    max_tokens = newer if newer is not None else value_at(body, "max_tokens")
    if max_tokens is not None and not (isinstance(max_tokens, int) and max_tokens > 0):
        raise ValueError(f"max_tokens must be a positive whole number, but got {max_tokens!r}")
    return _seconds(value_at(row, arrival_field), arrival_field), prompts[0].model_copy(
        update={"max_tokens": max_tokens}
    )


def value_at(row: object, field: str) -> object:
    """`row[field]`; where there is no such key, `a.b` is `row["a"]["b"]`. None where nothing is there."""
    if not isinstance(row, Mapping):
        return None
    if field in row:
        return row[field]
    first, _, rest = field.partition(".")
    return value_at(row.get(first), rest) if rest else None


def _seconds(value: object, field: str) -> float:
    try:
        seconds = float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        seconds = _iso_seconds(str(value))
    if seconds is None or isinstance(value, bool):
        raise ValueError(f"has no time in {field!r}, ISO 8601 or seconds, but got {value!r}; set arrival_field")
    if not abs(seconds) < LATEST_S:
        raise ValueError(f"{field!r} must be in seconds, but got {value!r}, which looks like milliseconds")
    return seconds


def _iso_seconds(text: str) -> float | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
