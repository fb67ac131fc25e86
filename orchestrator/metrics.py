"""The figures of docs/metrics.md, each one formula. Missing is None, never 0."""

from collections.abc import Iterable

from orchestrator.config import Slo
from orchestrator.records import BlockRecord, SpecCounters

FASTEST_TPOT_S = 1e-4
"""10,000 tokens/s for one request; seen at most: 3,000, with 16 tokens a step."""
AT_ONCE_SHARE = 0.01
"""Of a request's time; both are asked, since a short answer to a long prompt may take one step that is no more."""


def add_counters(parts: Iterable[SpecCounters]) -> SpecCounters | None:
    """The sum over blocks; None for no block."""
    items = list(parts)
    if not items:
        return None
    width = max(len(part.num_accepted_tokens_per_pos) for part in items)
    per_pos = [
        part.num_accepted_tokens_per_pos + (0,) * (width - len(part.num_accepted_tokens_per_pos)) for part in items
    ]
    return SpecCounters(
        num_drafts=sum(part.num_drafts for part in items),
        num_draft_tokens=sum(part.num_draft_tokens for part in items),
        num_accepted_tokens=sum(part.num_accepted_tokens for part in items),
        num_accepted_tokens_per_pos=tuple(sum(column) for column in zip(*per_pos, strict=True)),
    )


def acceptance_rate(counters: SpecCounters) -> float | None:
    """Accepted / drafted tokens."""
    return counters.num_accepted_tokens / counters.num_draft_tokens if counters.num_draft_tokens else None


def acceptance_length(counters: SpecCounters) -> float | None:
    """Mean tokens per verification step, the target's own one included: 1 + accepted / drafts."""
    return 1 + counters.num_accepted_tokens / counters.num_drafts if counters.num_drafts else None


def survival(counters: SpecCounters) -> tuple[float, ...] | None:
    """Share of drafts whose token at position i (from 0) was accepted."""
    if not counters.num_drafts:
        return None
    return tuple(accepted / counters.num_drafts for accepted in counters.num_accepted_tokens_per_pos)


def tokens_per_draft(counters: SpecCounters) -> float | None:
    """Drafted tokens per step: what num_speculative_tokens really is on the running engine."""
    return counters.num_draft_tokens / counters.num_drafts if counters.num_drafts else None


def tpot_s(e2e_s: float, ttft_s: float, output_tokens: int) -> float | None:
    """Time per output token after the first, seconds; None for a single token."""
    return (e2e_s - ttft_s) / (output_tokens - 1) if output_tokens > 1 else None


def came_at_once(ttft_s: float, tpot_s: float | None, e2e_s: float) -> bool:
    """Whether the client got all tokens of an answer of several in one go, so that neither TTFT nor TPOT is measured.

    The engine takes at least one step between the first token and the last, and steps take longer than this; a step
    that gives several tokens, as with speculation, is a step all the same.
    """
    return tpot_s is not None and tpot_s < FASTEST_TPOT_S and e2e_s - ttft_s < AT_ONCE_SHARE * e2e_s


def num_good_requests(block: BlockRecord, slo: Slo) -> int:
    """Requests that meet every limit; a single token has no TPOT to miss."""
    return sum(
        (slo.ttft_s is None or ttft <= slo.ttft_s)
        and (slo.tpot_s is None or tpot is None or tpot <= slo.tpot_s)
        and (slo.e2e_s is None or e2e <= slo.e2e_s)
        for ttft, tpot, e2e in zip(block.ttft_s, block.tpot_s, block.e2e_s, strict=True)
    )


def usd_per_million_output_tokens(usd_per_hour: float, output_tokens_per_s: float) -> float:
    return usd_per_hour / (3600 * output_tokens_per_s) * 1e6


def saving(speedup: float) -> float:
    """Share of the cost per token that a speedup saves at the same price per hour."""
    return 1 - 1 / speedup
