"""Takes a streamed chat completion apart: server-sent events to tokens, times, usage and errors."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import BaseModel, JsonValue, ValidationError

from orchestrator.ids import canonical_json, text_sha256

Piece = tuple[float, bytes]
"""Arrival in seconds from the load's start, and the bytes that the socket gave: any part of one or more events."""

_ERROR_LENGTH = 200


class _Delta(BaseModel):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        return (self.reasoning or self.reasoning_content or "") + (self.content or "")


class _Choice(BaseModel):
    delta: _Delta = _Delta()
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def has_tokens(self) -> bool:
        """The first event names the role and has an empty content: it is no token."""
        return bool(self.delta.text if self.token_ids is None else self.token_ids)


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int


class _Event(BaseModel):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: JsonValue = None


@dataclass
class Stream:
    """What one streamed answer said."""

    chunk_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    """Reasoning included."""
    content: str = ""
    """The answer alone, as the next turn of a conversation has it."""
    finish_reason: str | None = None
    usage: _Usage | None = None
    error: str | None = None

    @property
    def sha256(self) -> str:
        """Of the token ids where the server returned them, else of the text."""
        return text_sha256(canonical_json(self.token_ids) if self.token_ids else self.text)

    def fault(self) -> str | None:
        """Why this answer is no complete one."""
        if self.error is not None:
            return self.error
        if self.finish_reason in ("abort", "error"):
            return f"the server ended the request with finish_reason {self.finish_reason}"
        if self.usage is None:
            return "the stream ended without usage"
        return None if self.chunk_s else "the stream carried no token"


def read_stream(pieces: Iterable[Piece]) -> Stream:
    """Take a server-sent event stream apart. An event arrives with the piece that completes it."""
    stream = Stream()
    for arrival_s, data in _events(pieces):
        if data == b"[DONE]":
            break
        try:
            event = _Event.model_validate_json(data)
        except ValidationError:
            stream.error = shorten(f"not a completion event: {data.decode(errors='replace')}")
            break
        if event.error is not None:
            stream.error = f"error in the stream: {error_message(data)}"
            break
        stream.usage = event.usage or stream.usage
        for choice in event.choices:
            stream.finish_reason = choice.finish_reason or stream.finish_reason
            stream.text += choice.delta.text
            stream.content += choice.delta.content or ""
            stream.token_ids += choice.token_ids or []
            if choice.has_tokens:
                stream.chunk_s.append(arrival_s)
    return stream


def _events(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The data of each whole event. vLLM writes an event as one line, so a line is an event."""
    rest = b""
    for arrival_s, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield arrival_s, line[len(b"data:") :].strip()


def error_message(data: bytes) -> str:
    """The message of an OpenAI-style error body, else the body itself, on one line of at most 200 characters."""
    text = data.decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        text = error if isinstance(error, str) else error["message"]
    except (ValueError, KeyError, TypeError):
        pass  # not that shape: the raw body is the best there is
    return shorten(text)


def shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _ERROR_LENGTH else flat[: _ERROR_LENGTH - 3] + "..."
