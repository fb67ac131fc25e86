"""A stand-in for `vllm serve` that starts at once and has a known truth.

    python tests/standin/server.py serve MODEL --host H --port P [--speculative-config JSON] [vLLM's other flags]

It speaks the parts of vLLM 0.32's HTTP interface that the project uses, logs the line that states the configuration,
and simulates decoding: a step takes `step_s`, and drafts are accepted by a chance that a word in the prompt chooses.
Tokens are a hash of the prompt (and of the seed, at a temperature), so all arms answer alike. Flags of vLLM that it
does not know are ignored.

The speedups to expect (`expected_speedup`), on a machine that is not too busy for steps of 2 ms: at concurrency 1
code 5.5 at k=15 (4.1 at 7), math 2.2 at k=7 (1.9 at 3 and 15), chat at most 0.8 at any k.
"""

import argparse
import asyncio
import hashlib
import json
import logging
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

ACCEPTANCE = {"code": 0.95, "math": 0.75, "chat": 0.1}
"""Word in the prompt -> chance that a drafted token is accepted, given that all before it were."""
OTHER_ACCEPTANCE = 0.5
DRAFTING_COST = 0.3
"""A draft pass, as a share of a step of one token."""
TOKEN_COST = 0.05
"""Each further token verified in a step, as the same share."""
SLOWDOWN = float(os.environ.get("STANDIN_SLOWDOWN", 1))
"""From the environment, so that one node of several can be slow."""

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger("standin")


def step_s(step_ms: float, num_running: int, k: int) -> float:
    """Seconds that a decoding step of the whole batch takes."""
    num_verified = num_running * (k + 1)
    return step_ms / 1000 * (1 + (DRAFTING_COST if k else 0) + TOKEN_COST * (num_verified - 1))


def acceptance(prompt: str) -> float:
    return next((p for word, p in ACCEPTANCE.items() if word in prompt.lower()), OTHER_ACCEPTANCE)


def expected_speedup(prompt: str, k: int, max_concurrency: int) -> float:
    """Of decoding, without prefill and noise: 1 + p + ... + p^k tokens a step, over what the step takes longer."""
    tokens_per_step = sum(acceptance(prompt) ** i for i in range(k + 1))
    return tokens_per_step * step_s(1, max_concurrency, 0) / step_s(1, max_concurrency, k)


def token_ids(prompt: str, count: int) -> list[int]:
    return [int.from_bytes(hashlib.sha256(f"{i}:{prompt}".encode()).digest()[:2], "big") for i in range(count)]


def compute(seconds: float) -> None:
    """Take that much CPU time, however long it takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@dataclass
class Engine:
    """The simulated engine: the counters it exposes, and how it misbehaves on request."""

    args: argparse.Namespace
    k: int
    num_requests: int = 0
    num_running: int = 0
    peak_running: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    per_pos: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    generation_tokens: int = 0

    def __post_init__(self) -> None:
        self.per_pos = [0] * self.k

    @property
    def k_now(self) -> int:
        """By the schedule over batch sizes where there is one."""
        ranges = (self.args.speculative_config or {}).get("num_speculative_tokens_per_batch_size")
        batch = max(1, self.num_running)
        return next(k for first, last, k in ranges if first <= batch <= last) if ranges else self.k

    def chunks(self, prompt: str, count: int, temperature: float) -> Iterator[list[int]]:
        """Tokens step by step: one from the prefill, then 1 + accepted a step, cut at `count`."""
        collapsed = self.args.standin_collapse and temperature > 0
        ids, chance = self.token_ids(prompt, count), 0.0 if collapsed else acceptance(prompt)
        draw = random.Random(f"{self.k}:{prompt}")
        yield ids[:1]
        done = 1
        while done < count:
            k = self.k_now
            accepted = next((i for i in range(k) if draw.random() >= chance), k)
            self.num_drafts += 1 if k else 0
            self.num_draft_tokens += k
            for position in range(accepted):
                self.per_pos[position] += 1
            yield ids[done : done + accepted + 1]
            done += accepted + 1

    def token_ids(self, prompt: str, count: int) -> list[int]:
        ids, at = token_ids(prompt, count), self.args.standin_differ_at
        if at is None or not self.k or ids[0] % 2:
            return ids
        return ids[:at] + [token + 1 for token in ids[at:]]

    def metrics(self) -> str:
        claimed = self.args.standin_tokens_per_draft
        drafted = self.num_drafts * claimed if claimed else self.num_draft_tokens
        series: list[tuple[str, str, int]] = [
            ("prompt_tokens_total", "", self.prompt_tokens),
            ("generation_tokens_total", "", self.generation_tokens),
            ("num_preemptions_total", "", 0),
            ("prefix_cache_queries_total", "", self.prompt_tokens if self.args.standin_prefix_hits else 0),
            ("prefix_cache_hits_total", "", self.args.standin_prefix_hits * self.num_requests),
        ]
        if self.k:
            series += [
                ("spec_decode_num_drafts_total", "", self.num_drafts),
                ("spec_decode_num_draft_tokens_total", "", drafted),
                ("spec_decode_num_accepted_tokens_total", "", sum(self.per_pos)),
            ]
            for position, value in enumerate(self.per_pos):
                series.append(("spec_decode_num_accepted_tokens_per_pos_total", f',position="{position}"', value))
        labels = f'engine="0",model_name="{self.args.model}"'
        lines = [f"vllm:{name}{{{labels}{more}}} {float(value)}" for name, more, value in series]
        lines += [
            f"vllm:num_requests_running{{{labels}}} {float(self.num_running)}",
            f"standin:peak_requests_running {float(self.peak_running)}",
            f"standin:num_requests_total {float(self.num_requests)}",
        ]
        return "\n".join(lines) + "\n"


def event(data: Json) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def prompt_of(body: Json) -> str:
    if "messages" in body:
        return "\n".join(str(message["content"]) for message in body["messages"])
    return str(body["prompt"])


def error_response(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "StandIn", "code": status}}, status=status)


@dataclass
class Answer:
    """One completion in the shapes that vLLM gives it."""

    body: Json
    is_chat: bool
    prompt: str
    count: int
    finish_reason: str
    num_sent: int = 0

    @property
    def source(self) -> str:
        """What the tokens are a hash of: sampled ones depend on the seed too."""
        return f"{self.prompt} #{self.body.get('seed')}" if self.body.get("temperature") else self.prompt

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.split())

    def opening(self) -> bytes:
        """A chat starts with an event that has the role and no token."""
        if not self.is_chat:
            return b""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return event(self._envelope([choice]) | {"prompt_token_ids": list(range(self.prompt_tokens))})

    def chunk(self, ids: list[int]) -> bytes:
        self.num_sent += len(ids)
        choice = self._content("delta", ids) | self._ids(ids)
        return event(self._envelope([choice | {"finish_reason": self.finish_reason if self.is_done else None}]))

    @property
    def is_done(self) -> bool:
        return self.num_sent >= self.count

    def closing(self) -> bytes:
        wants_usage = (self.body.get("stream_options") or {}).get("include_usage")
        usage = event(self._envelope([]) | {"usage": self._usage()}) if wants_usage else b""
        return usage + b"data: [DONE]\n\n"

    def whole(self) -> Json:
        ids = token_ids(self.source, self.count)
        choice = self._content("message", ids) | self._ids(ids) | {"finish_reason": self.finish_reason}
        return self._envelope([choice]) | {"usage": self._usage()}

    def _content(self, key: str, ids: list[int]) -> Json:
        text = "".join(f" w{token}" for token in ids)
        return {"index": 0} | ({key: {"role": "assistant", "content": text}} if self.is_chat else {"text": text})

    def _ids(self, ids: list[int]) -> Json:
        return {"token_ids": ids} if self.body.get("return_token_ids") else {}

    def _envelope(self, choices: list[Json]) -> Json:
        return {"id": "standin", "object": "completion", "model": self.body["model"], "choices": choices}

    def _usage(self) -> Json:
        total = self.prompt_tokens + self.count
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": total, "completion_tokens": self.count}


@web.middleware
async def require_api_key(request: web.Request, handler: Handler) -> web.StreamResponse:
    key = os.environ.get("VLLM_API_KEY")
    if key and request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {key}":
        return web.json_response({"error": "Unauthorized"}, status=401)
    return await handler(request)


class Server:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.args = engine, engine.args

    def app(self) -> web.Application:
        app = web.Application(middlewares=[require_api_key])
        app.router.add_get("/health", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/chat/completions", self.complete)
        return app

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.args.standin_version})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.engine.metrics())

    async def models(self, _: web.Request) -> web.Response:
        card = {"id": self.args.model, "object": "model", "owned_by": "vllm", "max_model_len": self.args.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body, is_chat = await request.json(), request.path.endswith("/chat/completions")
        self.engine.num_requests += 1
        self._die_if_due()
        if self.args.standin_fail_every and self.engine.num_requests % self.args.standin_fail_every == 0:
            return error_response(500, "stand-in failure asked for by --standin-fail-every")
        if self.args.standin_fail_after and self.engine.num_requests > self.args.standin_fail_after:
            return error_response(500, "stand-in failure asked for by --standin-fail-after")
        if body["model"] != self.args.model:
            return error_response(404, f"The model `{body['model']}` does not exist.")
        prompt, wanted = prompt_of(body), int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        if len(prompt.split()) + wanted > self.args.max_model_len:
            return error_response(400, f"max_tokens={wanted} does not fit max_model_len={self.args.max_model_len}.")
        count = max(1, wanted // 2) if self.args.standin_short else wanted
        answer = Answer(body, is_chat, prompt, count, "length" if count == wanted else "stop")
        self.engine.prompt_tokens += answer.prompt_tokens
        self.engine.num_running += 1
        self.engine.peak_running = max(self.engine.peak_running, self.engine.num_running)
        try:
            return await (self._stream(request, answer) if body.get("stream") else self._whole(answer))
        finally:
            self.engine.num_running -= 1

    def _die_if_due(self) -> None:
        if self.args.standin_die_after and self.engine.num_requests > self.args.standin_die_after:
            log.error("vllm.v1.engine.exceptions.EngineDeadError: stand-in death asked for by --standin-die-after")
            os._exit(1)

    async def _stream(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            await response.write(answer.opening())
            async for ids in self._decode(answer):
                await response.write(answer.chunk(ids))
            await response.write(answer.closing())
            await response.write_eof()
        except ConnectionError:
            log.info("client went away")
        return response

    async def _whole(self, answer: Answer) -> web.Response:
        async for _ in self._decode(answer):
            pass
        return web.json_response(answer.whole())

    async def _decode(self, answer: Answer) -> AsyncIterator[list[int]]:
        """Tokens at the pace of `step_s`, against a clock, so that slow sleeps do not add up."""
        due = time.perf_counter()
        for ids in self.engine.chunks(answer.source, answer.count, float(answer.body.get("temperature") or 0)):
            seconds = SLOWDOWN * step_s(self.args.standin_step_ms, self.engine.num_running, self.engine.k_now)
            due += seconds
            if self.args.standin_busy:
                compute(seconds)
            else:
                await asyncio.sleep(due - time.perf_counter())
            self.engine.generation_tokens += len(ids)
            yield ids


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--version", action="version", version="0.32.0")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--speculative-config", type=json.loads)
    parser.add_argument("--standin-step-ms", type=float, default=2.0)
    parser.add_argument("--standin-fail-every", type=int, help="every Nth completion answers HTTP 500")
    parser.add_argument("--standin-fail-after", type=int, help="every completion after the Nth answers HTTP 500")
    parser.add_argument("--standin-die-after", type=int, help="exit 1 on the completion after the Nth")
    parser.add_argument("--standin-short", action="store_true", help="half the tokens asked for")
    parser.add_argument("--standin-tokens-per-draft", type=int, help="counters claim this many drafted tokens a draft")
    parser.add_argument("--standin-prefix-hits", type=int, default=0, help="counters claim so many a request")
    parser.add_argument("--standin-collapse", action="store_true", help="no draft is accepted at temperature > 0")
    parser.add_argument("--standin-busy", action="store_true", help="steps take CPU time and not only time")
    parser.add_argument("--standin-version", default="0.32.0")
    parser.add_argument("--standin-differ-at", type=int, help="drafts change half the answers from token N on")
    parser.add_argument("--standin-die-at-start", metavar="MESSAGE", help="a traceback like vLLM's, and exit 1")
    args, _ = parser.parse_known_args(argv)
    return args


def log_configuration(args: argparse.Namespace) -> None:
    """The lines of vLLM's log that state what really runs, and on which CPUs."""
    spec = args.speculative_config
    stated = (
        f"SpeculativeConfig(method={spec['method']!r}, model={spec.get('model')!r}, "
        f"num_spec_tokens={spec['num_speculative_tokens']})"
        if spec
        else None
    )
    log.info(
        "Initializing a V1 LLM engine (v0.32.0) with config: model=%r, speculative_config=%s, tokenizer=%r, "
        "dtype=torch.bfloat16, max_seq_len=%d, device_config=cpu",
        *(args.model, stated, args.model, args.max_model_len),
    )
    log.warning("Triton is not installed. triton-cpu is expected on x86 CPUs.")
    for line in ("OpenMP thread binding info: ", "\tVLLM_CPU_OMP_THREADS_BIND='auto'", "\tlocal_rank=0, core ids=[0]"):
        log.info(line)


def main(argv: list[str]) -> int:
    logging.basicConfig(
        format="(EngineCore pid=%(process)d) %(levelname)s %(asctime)s [core.py:133] %(message)s",
        datefmt="%m-%d %H:%M:%S",
        level=logging.INFO,
        stream=sys.stdout,
    )
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    args = parse_args(argv)
    if args.standin_die_at_start:
        raise ValueError(args.standin_die_at_start)
    log_configuration(args)
    k = args.speculative_config["num_speculative_tokens"] if args.speculative_config else 0
    web.run_app(Server(Engine(args, k)).app(), host=args.host, port=args.port, print=None, shutdown_timeout=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
