"""vLLM's own counters, read from /metrics and subtracted over a block."""

import http.client
import urllib.request
from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.config import Strict
from orchestrator.errors import ServerError
from orchestrator.records import PrefixCache, SpecCounters

_SPEC = "vllm:spec_decode_"
_PER_POS = f"{_SPEC}num_accepted_tokens_per_pos_total"


class EngineCounters(Strict):
    """Sums over all engines of one server. None: the server exposes no such series."""

    spec: SpecCounters | None
    """None for a baseline: vLLM registers the spec_decode series only with a speculative config."""
    prefix_cache_hits: int | None
    prefix_cache_queries: int | None
    num_preemptions: int | None
    generation_tokens: int | None

    @property
    def prefix_cache(self) -> PrefixCache | None:
        if self.prefix_cache_queries is None or self.prefix_cache_hits is None:
            return None
        return PrefixCache(queries=self.prefix_cache_queries, hits=self.prefix_cache_hits)


def read_counters(base_url: str, api_key: str | None, timeout_s: float) -> EngineCounters:
    """The counters now, since the server's start.

    Raises:
        ServerError: /metrics cannot be read within `timeout_s`, or is not Prometheus text.
    """
    url = f"{base_url.rstrip('/')}/metrics"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    # No proxy from the environment: the server is on this node.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            text = response.read().decode()
        return parse_counters(text)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServerError(f"cannot read the engine's counters from {url}: {error}; is the server running?") from error


def parse_counters(text: str) -> EngineCounters:
    """Counters from Prometheus text.

    Raises:
        ValueError: `text` is not in that format.
    """
    totals: dict[str, int] = defaultdict(int)
    per_pos: dict[int, int] = defaultdict(int)
    # Most of vLLM's 60 KB are histograms: without them parsing takes 1 ms instead of 13, twice a block.
    counters = "\n".join(line for line in text.splitlines() if line.startswith("vllm:") and "_total" in line)
    for family in text_string_to_metric_families(counters + "\n"):
        for sample in family.samples:
            if sample.name == _PER_POS:
                per_pos[int(sample.labels["position"])] += int(sample.value)
            else:
                totals[sample.name] += int(sample.value)
    return EngineCounters(
        spec=_spec_counters(totals, per_pos),
        prefix_cache_hits=totals.get("vllm:prefix_cache_hits_total"),
        prefix_cache_queries=totals.get("vllm:prefix_cache_queries_total"),
        num_preemptions=totals.get("vllm:num_preemptions_total"),
        generation_tokens=totals.get("vllm:generation_tokens_total"),
    )


def delta(before: EngineCounters, after: EngineCounters) -> EngineCounters:
    """What happened between two readings of one server.

    Raises:
        ServerError: a counter went backwards or a series came or went, so it was not one server.
    """
    return EngineCounters(
        spec=_spec_delta(before.spec, after.spec),
        prefix_cache_hits=_difference("prefix_cache_hits", before.prefix_cache_hits, after.prefix_cache_hits),
        prefix_cache_queries=_difference(
            "prefix_cache_queries", before.prefix_cache_queries, after.prefix_cache_queries
        ),
        num_preemptions=_difference("num_preemptions", before.num_preemptions, after.num_preemptions),
        generation_tokens=_difference("generation_tokens", before.generation_tokens, after.generation_tokens),
    )


def _spec_counters(totals: Mapping[str, int], per_pos: Mapping[int, int]) -> SpecCounters | None:
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    values = [totals.get(f"{_SPEC}{name}_total") for name in names]
    drafts, drafted, accepted = values
    if drafts is None or drafted is None or accepted is None:
        return None
    return SpecCounters(
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        # By number: as text, position 10 would come before 9.
        num_accepted_tokens_per_pos=tuple(per_pos.get(i, 0) for i in range(max(per_pos, default=-1) + 1)),
    )


def _spec_delta(before: SpecCounters | None, after: SpecCounters | None) -> SpecCounters | None:
    if before is None and after is None:
        return None
    if before is None or after is None:
        raise _restarted("the spec_decode series", before is not None, after is not None)
    first, last = before.num_accepted_tokens_per_pos, after.num_accepted_tokens_per_pos
    if len(first) != len(last):
        raise _restarted("the number of draft positions", len(first), len(last))
    return SpecCounters(
        num_drafts=_minus("num_drafts", before.num_drafts, after.num_drafts),
        num_draft_tokens=_minus("num_draft_tokens", before.num_draft_tokens, after.num_draft_tokens),
        num_accepted_tokens=_minus("num_accepted_tokens", before.num_accepted_tokens, after.num_accepted_tokens),
        num_accepted_tokens_per_pos=tuple(
            _minus(f"num_accepted_tokens_per_pos[{i}]", a, b) for i, (a, b) in enumerate(zip(first, last, strict=True))
        ),
    )


def _difference(name: str, before: int | None, after: int | None) -> int | None:
    if before is None and after is None:
        return None
    if before is None or after is None:
        raise _restarted(name, before, after)
    return _minus(name, before, after)


def _minus(name: str, before: int, after: int) -> int:
    if after < before:
        raise _restarted(name, before, after)
    return after - before


def _restarted(name: str, before: object, after: object) -> ServerError:
    return ServerError(
        f"counter {name} went from {before} to {after} within a block: the server restarted, "
        "or another one answers on its port; measure the block again"
    )
