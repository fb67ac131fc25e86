"""Sends conversations over HTTP and notes when what arrives; reads nothing of it but an answer that goes on.

Closed loop: each of `concurrency` streams sends its next conversation when its last one has ended. Open loop: each
conversation begins when it is due, however many are under way. Within one the next turn follows the answer at once.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from tasks.stream import Piece, error_message, read_stream, shorten


@dataclass(frozen=True)
class Conversation:
    first: bytes
    """Body of the first turn's request, made before the load starts."""
    num_turns: int
    next_body: Callable[[Sequence[str]], bytes]
    """Body of the turn after the model's answers so far."""
    due_s: float | None = None
    """When to begin, from the load's start; None: as soon as a stream is free."""


@dataclass(frozen=True)
class Endpoint:
    url: str
    headers: dict[str, str]
    timeout_s: float
    """Of one request."""


@dataclass
class Reply:
    """One request as it went over the wire, not yet read. Times from the load's start, in seconds."""

    sent_s: float
    turn: int
    due_s: float | None
    end_s: float = 0.0
    pieces: list[Piece] = field(default_factory=list)
    error: str | None = None


async def drive(
    endpoint: Endpoint, conversations: Sequence[Conversation], concurrency: int | None
) -> tuple[list[list[Reply]], float]:
    """Each conversation's replies, in order; and this process's CPU seconds from first send to last end.

    Args:
        concurrency: None for an open loop, where every conversation has its `due_s`.
    """
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=concurrency or 0),
        timeout=aiohttp.ClientTimeout(total=endpoint.timeout_s),
        headers=endpoint.headers,
    ) as session:
        cpu_start, start = time.process_time(), time.perf_counter()
        client = _Client(session, endpoint, start)
        if concurrency is None:
            replies = await asyncio.gather(*(client.play_when_due(each) for each in conversations))
        else:
            replies = await client.play_closed_loop(conversations, concurrency)
        return replies, time.process_time() - cpu_start


@dataclass(frozen=True)
class _Client:
    session: aiohttp.ClientSession
    endpoint: Endpoint
    start: float

    def _now_s(self) -> float:
        return time.perf_counter() - self.start

    async def play_closed_loop(self, conversations: Sequence[Conversation], concurrency: int) -> list[list[Reply]]:
        queue = iter(enumerate(conversations))
        replies: dict[int, list[Reply]] = {}

        async def stream() -> None:
            for index, conversation in queue:
                replies[index] = await self._play(conversation)

        await asyncio.gather(*(stream() for _ in range(concurrency)))
        return [replies[index] for index in range(len(conversations))]

    async def play_when_due(self, conversation: Conversation) -> list[Reply]:
        await asyncio.sleep((conversation.due_s or 0.0) - self._now_s())
        return await self._play(conversation)

    async def _play(self, conversation: Conversation) -> list[Reply]:
        """A turn that fails is the last one: what would follow it is not known."""
        replies = [await self._send(conversation.first, turn=0, due_s=conversation.due_s)]
        answers: list[str] = []
        while len(replies) < conversation.num_turns:
            answer = read_stream(replies[-1].pieces)
            if replies[-1].error or answer.fault():
                break
            answers.append(answer.content)
            replies.append(await self._send(conversation.next_body(answers), turn=len(replies), due_s=None))
        return replies

    async def _send(self, body: bytes, turn: int, due_s: float | None) -> Reply:
        reply = Reply(sent_s=self._now_s(), turn=turn, due_s=due_s)
        try:
            async with self.session.post(self.endpoint.url, data=body) as response:
                if response.status != 200:
                    reply.error = f"HTTP {response.status} {error_message(await response.read())}"
                else:
                    async for data in response.content.iter_any():
                        reply.pieces.append((self._now_s(), data))
        except TimeoutError:
            reply.error = f"timed out: no end within {self.endpoint.timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            reply.error = shorten(f"{type(error).__name__}: {error}")
        reply.end_s = self._now_s()
        return reply
