"""Closed-loop load on an OpenAI-compatible server, light on CPU because it shares the node with the engine.

While the load runs, nothing is done with what arrives but to note when. `tasks.stream` takes the bytes apart only
after the last request has ended: the engine needs the cores until then.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import aiohttp
import numpy as np
from pydantic import JsonValue

from orchestrator.config import Strict
from orchestrator.ids import canonical_json
from orchestrator.metrics import tpot_s
from orchestrator.records import Prompt, RequestRecord, WorkloadCell
from tasks.stream import Piece, error_message, read_stream, shorten


class Target(Strict):
    base_url: str
    """Without `/v1`, for example `http://127.0.0.1:8000`."""
    api_key: str | None
    model: str


class LoadResult(Strict):
    requests: tuple[RequestRecord, ...]
    """In the order of the prompts."""
    wall_s: float
    """From the first send to the end of the last request."""
    client_cpu_cores: float
    """CPU time of this process over the load / its wall time."""


class LoadSummary(Strict):
    """The parts of a BlockRecord that come from its requests, under the same names.

    Token sums and times hold the requests that succeeded; `void_reason` says when the block does not count.
    """

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float | None, ...]
    e2e_s: tuple[float, ...]
    itl_s: dict[str, float]
    output_sha256: tuple[str, ...]
    """One a request in the order of the prompts; "" for a request that failed."""
    void_reason: str | None


def run_load(target: Target, prompts: Sequence[tuple[int, Prompt]], cell: WorkloadCell) -> LoadResult:
    """Send every prompt once as a streaming chat completion, `cell.max_concurrency` under way at any time.

    `prompts` are pairs of prompt index and prompt. A request that fails is recorded with its error and never raises.
    Blocks the thread, which must have no running event loop.

    Raises:
        ValueError: there is no prompt.
    """
    if not prompts:
        raise ValueError("needs at least one prompt")
    bodies = [canonical_json(_body(target, prompt, cell)).encode() for _, prompt in prompts]
    replies, cpu_s = asyncio.run(_drive(target, bodies, cell.max_concurrency, cell.request_timeout_s))
    wall_s = max(reply.end_s for reply in replies) - min(reply.sent_s for reply in replies)
    return LoadResult(
        requests=tuple(_record(index, reply) for (index, _), reply in zip(prompts, replies, strict=True)),
        wall_s=wall_s,
        client_cpu_cores=cpu_s / wall_s,
    )


def summarise(requests: Sequence[RequestRecord], cell: WorkloadCell) -> LoadSummary:
    """What a BlockRecord keeps of its requests. E2E ends at the last token, not at the closing usage event."""
    good = [request for request in requests if request.error is None]
    ttft = [request.chunk_s[0] - request.sent_s for request in good]
    e2e = [request.chunk_s[-1] - request.sent_s for request in good]
    tpot = [tpot_s(e, t, r.output_tokens or 0) for e, t, r in zip(e2e, ttft, good, strict=True)]
    return LoadSummary(
        num_requests=len(requests),
        prompt_tokens=sum(request.prompt_tokens or 0 for request in good),
        output_tokens=sum(request.output_tokens or 0 for request in good),
        ttft_s=tuple(ttft),
        tpot_s=tuple(tpot),
        e2e_s=tuple(e2e),
        itl_s=itl_percentiles(request.chunk_s for request in good),
        output_sha256=tuple(request.output_sha256 or "" for request in requests),
        void_reason=void_reason(requests, cell),
    )


def itl_percentiles(chunk_s: Iterable[Sequence[float]]) -> dict[str, float]:
    """p50, p95, p99 over all gaps between chunks, seconds; `chunk_s` holds one request's arrivals an item.

    Empty where no request had two chunks. With speculation a chunk may carry several tokens.
    """
    gaps = np.concatenate([np.zeros(0), *(np.diff(np.asarray(times, dtype=float)) for times in chunk_s)])
    if not gaps.size:
        return {}
    return {f"p{q}": float(value) for q, value in zip((50, 95, 99), np.percentile(gaps, (50, 95, 99)), strict=True)}


def void_reason(requests: Sequence[RequestRecord], cell: WorkloadCell) -> str | None:
    """Why these requests say nothing about throughput: one failed, or one is short though EOS is ignored."""
    if not requests:
        return "no request was sent"
    failed = [request.error for request in requests if request.error is not None]
    if failed:
        return f"{len(failed)} of {len(requests)} requests failed: {failed[0]}"
    short = [r for r in requests if cell.ignore_eos and (r.output_tokens or 0) < cell.output_len]
    if short:
        return (
            f"{len(short)} of {len(requests)} requests ended short: "
            f"{short[0].output_tokens} of {cell.output_len} output tokens (finish_reason {short[0].finish_reason})"
        )
    return None


def _body(target: Target, prompt: Prompt, cell: WorkloadCell) -> dict[str, JsonValue]:
    body: dict[str, JsonValue] = {
        "model": target.model,
        "messages": [{"role": message.role, "content": message.content} for message in prompt.messages],
        "max_tokens": cell.output_len,
        "temperature": cell.temperature,
        "top_p": cell.top_p,
        "seed": cell.seed,
        "ignore_eos": cell.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    return body | ({"chat_template_kwargs": cell.chat_template_kwargs} if cell.chat_template_kwargs else {})


@dataclass
class _Reply:
    """One request as it went over the wire, not yet read."""

    sent_s: float
    end_s: float = 0.0
    pieces: list[Piece] = field(default_factory=list)
    error: str | None = None


async def _drive(
    target: Target, bodies: Sequence[bytes], concurrency: int, timeout_s: float
) -> tuple[list[_Reply], float]:
    """Replies in the order of `bodies`, and this process's CPU seconds from first send to last end."""
    headers = {"Content-Type": "application/json"}
    if target.api_key is not None:
        headers["Authorization"] = f"Bearer {target.api_key}"
    url = f"{target.base_url.rstrip('/')}/v1/chat/completions"
    queue = iter(enumerate(bodies))
    replies: dict[int, _Reply] = {}

    async def worker() -> None:
        for index, body in queue:
            replies[index] = await _send(session, url, body, start, timeout_s)

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=concurrency),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers=headers,
    ) as session:
        cpu_start, start = time.process_time(), time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        cpu_s = time.process_time() - cpu_start
    return [replies[index] for index in range(len(bodies))], cpu_s


async def _send(session: aiohttp.ClientSession, url: str, body: bytes, start: float, timeout_s: float) -> _Reply:
    reply = _Reply(sent_s=time.perf_counter() - start)
    try:
        async with session.post(url, data=body) as response:
            if response.status != 200:
                reply.error = f"HTTP {response.status} {error_message(await response.read())}"
            else:
                async for data in response.content.iter_any():
                    reply.pieces.append((time.perf_counter() - start, data))
    except TimeoutError:
        reply.error = f"timed out: no end within {timeout_s:g} s"
    except (aiohttp.ClientError, OSError) as error:
        reply.error = shorten(f"{type(error).__name__}: {error}")
    reply.end_s = time.perf_counter() - start
    return reply


def _record(prompt_index: int, reply: _Reply) -> RequestRecord:
    stream = read_stream(reply.pieces)
    error = reply.error or stream.fault()
    return RequestRecord(
        prompt_index=prompt_index,
        sent_s=reply.sent_s,
        first_token_s=stream.chunk_s[0] if stream.chunk_s else None,
        chunk_s=tuple(stream.chunk_s),
        end_s=reply.end_s,
        prompt_tokens=stream.usage.prompt_tokens if stream.usage else None,
        output_tokens=stream.usage.completion_tokens if stream.usage else None,
        finish_reason=stream.finish_reason,
        output_sha256=None if error else stream.sha256,
        output_token_ids=tuple(stream.token_ids) if stream.token_ids and not error else None,
        error=error,
    )
