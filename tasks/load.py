"""Load on an OpenAI-compatible server, light on CPU because it shares the node with the engine.

While the load runs, nothing is done with what arrives but to note when (and to read an answer that a conversation goes
on from). `tasks.stream` takes the bytes apart only after the last request has ended: the engine needs the cores.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from pydantic import JsonValue

from orchestrator.config import Strict
from orchestrator.ids import canonical_json
from orchestrator.metrics import tpot_s
from orchestrator.open_loop import OpenLoop, late_client, open_loop_of
from orchestrator.records import Message, Prompt, RequestRecord, WorkloadCell
from tasks.drive import Conversation, Endpoint, Reply, drive
from tasks.real_time import in_real_time, waited_s
from tasks.stream import read_stream


class Target(Strict):
    base_url: str
    """Without `/v1`, for example `http://127.0.0.1:8000`."""
    api_key: str | None
    model: str


class LoadResult(Strict):
    requests: tuple[RequestRecord, ...]
    """In the order of the prompts and their turns."""
    wall_s: float
    """From the first send to the end of the last request."""
    client_cpu_cores: float
    """CPU time of this process over the load / its wall time."""
    client_wait_share: float | None = None
    """Share (0..1) of the load in which this thread was ready to run and had no CPU."""


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
    open_loop: OpenLoop | None
    void_reason: str | None


def run_load(
    target: Target, prompts: Sequence[tuple[int, Prompt]], cell: WorkloadCell, due_s: Sequence[float] | None = None
) -> LoadResult:
    """Send every prompt once as a streaming chat completion, and every later turn of it after the answer before.

    `prompts` are pairs of prompt index and prompt. A request that fails is recorded with its error and never raises;
    the rest of its conversation is not sent. Blocks the thread, which must have no running event loop.

    Args:
        due_s: when to send each prompt, seconds from the start; None: `cell.max_concurrency` under way at any time.

    Raises:
        ValueError: there is no prompt.
    """
    if not prompts:
        raise ValueError("needs at least one prompt")
    dues = due_s if due_s is not None else [None] * len(prompts)
    conversations = [
        _conversation(target, index, prompt, cell, due) for (index, prompt), due in zip(prompts, dues, strict=True)
    ]
    endpoint = Endpoint(f"{target.base_url.rstrip('/')}/v1/chat/completions", _headers(target), cell.request_timeout_s)
    concurrency = None if due_s is not None else cell.max_concurrency or len(prompts)
    with in_real_time():
        waited_before = waited_s()
        played, cpu_s = asyncio.run(drive(endpoint, conversations, concurrency))
        waited_after = waited_s()
    replies = [reply for turns in played for reply in turns]
    wall_s = max(reply.end_s for reply in replies) - min(reply.sent_s for reply in replies)
    return LoadResult(
        requests=tuple(
            _record(index, prompt, reply)
            for (index, prompt), turns in zip(prompts, played, strict=True)
            for reply in turns
        ),
        wall_s=wall_s,
        client_cpu_cores=cpu_s / wall_s,
        client_wait_share=None
        if waited_before is None or waited_after is None
        else (waited_after - waited_before) / wall_s,
    )


def summarise(requests: Sequence[RequestRecord], cell: WorkloadCell) -> LoadSummary:
    """What a BlockRecord keeps of its requests. E2E ends at the last token, not at the closing usage event.

    In an open loop times count from when a request was due: what the client is late the user waits too.
    """
    good = [request for request in requests if request.error is None]
    ttft = [request.chunk_s[0] - _begin_s(request) for request in good]
    e2e = [request.chunk_s[-1] - _begin_s(request) for request in good]
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
        open_loop=_open_loop(good),
        void_reason=void_reason(requests, cell),
    )


def _begin_s(request: RequestRecord) -> float:
    return request.sent_s if request.due_s is None else request.due_s


def _open_loop(good: Sequence[RequestRecord]) -> OpenLoop | None:
    timed = sorted((r.due_s, r.sent_s, r.chunk_s[-1]) for r in good if r.due_s is not None)
    return open_loop_of(*zip(*timed, strict=True)) if timed else None


def itl_percentiles(chunk_s: Iterable[Sequence[float]]) -> dict[str, float]:
    """p50, p95, p99 over all gaps between chunks, seconds; `chunk_s` holds one request's arrivals an item.

    Empty where no request had two chunks. With speculation a chunk may carry several tokens.
    """
    gaps = np.concatenate([np.zeros(0), *(np.diff(np.asarray(times, dtype=float)) for times in chunk_s)])
    if not gaps.size:
        return {}
    return {f"p{q}": float(value) for q, value in zip((50, 95, 99), np.percentile(gaps, (50, 95, 99)), strict=True)}


def void_reason(requests: Sequence[RequestRecord], cell: WorkloadCell) -> str | None:
    """Why these requests say nothing about throughput: one failed, one is short though EOS is ignored, or an open
    loop's were sent late."""
    if not requests:
        return "no request was sent"
    failed = [request.error for request in requests if request.error is not None]
    if failed:
        return f"{len(failed)} of {len(requests)} requests failed: {failed[0]}"
    short = [r for r in requests if cell.ignore_eos and (r.output_tokens or 0) < (r.max_tokens or cell.output_len)]
    if short:
        wanted = short[0].max_tokens or cell.output_len
        return (
            f"{len(short)} of {len(requests)} requests ended short: "
            f"{short[0].output_tokens} of {wanted} output tokens (finish_reason {short[0].finish_reason})"
        )
    facts = _open_loop(requests)
    return late_client(facts) if facts else None


def _headers(target: Target) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    return headers | ({"Authorization": f"Bearer {target.api_key}"} if target.api_key is not None else {})


def _conversation(target: Target, index: int, prompt: Prompt, cell: WorkloadCell, due_s: float | None) -> Conversation:
    next_body = partial(_body, target, index, prompt, cell)
    return Conversation(first=next_body([]), num_turns=prompt.num_turns, next_body=next_body, due_s=due_s)


def _body(target: Target, index: int, prompt: Prompt, cell: WorkloadCell, answers: Sequence[str]) -> bytes:
    """The request of the turn that follows `answers`."""
    turns = zip(answers, prompt.later_turns, strict=False)
    later = [
        message
        for answer, text in turns
        for message in (Message(role="assistant", content=answer), Message(role="user", content=text))
    ]
    body: dict[str, JsonValue] = {
        "model": target.model,
        "messages": [{"role": message.role, "content": message.content} for message in (*prompt.messages, *later)],
        "max_tokens": prompt.max_tokens or cell.output_len,
        "temperature": cell.temperature,
        "top_p": cell.top_p,
        "seed": request_seed(cell.seed, index, len(answers)),
        "ignore_eos": cell.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        # Each workload finds only its own prompts in a prefix cache: other levels may have sent the same ones before.
        "cache_salt": cell.id,
    }
    more: dict[str, JsonValue] = (
        {"chat_template_kwargs": cell.chat_template_kwargs} if cell.chat_template_kwargs else {}
    )
    return canonical_json(body | more).encode()


def request_seed(seed: int, prompt_index: int, turn: int) -> int:
    """Of a request's sampling: the same for every arm, another one for every prompt, which would else draw alike."""
    digest = hashlib.sha256(f"{seed}/{prompt_index}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _record(prompt_index: int, prompt: Prompt, reply: Reply) -> RequestRecord:
    stream = read_stream(reply.pieces)
    error = reply.error or stream.fault()
    return RequestRecord(
        prompt_index=prompt_index,
        turn=reply.turn,
        max_tokens=prompt.max_tokens,
        due_s=reply.due_s,
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
