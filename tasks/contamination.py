"""Why a block does not count, by what the engine's own counters say of it. Pure."""

from orchestrator.methods import METHODS
from orchestrator.metrics import tokens_per_draft
from orchestrator.records import Arm, SpecCounters, WorkloadCell
from tasks.counters import EngineCounters

TOKENS_PER_DRAFT_TOLERANCE = 0.02


def contamination(arm: Arm, cell: WorkloadCell, counters: EngineCounters, output_tokens: int) -> str | None:
    """Why a block of `arm` was not what it should be; None where nothing speaks against it.

    Args:
        counters: of this block alone.
        output_tokens: what the client was sent.
    """
    if counters.prefix_cache_hits and not arm.server.enable_prefix_caching:
        return f"{counters.prefix_cache_hits} prefix cache hits although prefix caching is off"
    if counters.num_preemptions:
        return f"{counters.num_preemptions} requests were preempted (KV cache full); raise server.kv_cache_gib"
    if counters.generation_tokens is not None and counters.generation_tokens != output_tokens:
        return f"the engine generated {counters.generation_tokens} tokens, but the client was sent {output_tokens}"
    return speculation_mismatch(arm, cell, counters.spec)


def speculation_mismatch(arm: Arm, cell: WorkloadCell, spec: SpecCounters | None) -> str | None:
    """How the engine drafts otherwise than `arm` says; None where it does as it should."""
    drafted = tokens_per_draft(spec) if spec else None
    if arm.is_baseline:
        return f"the baseline drafted {drafted:.2f} tokens a step" if drafted else None
    least, most = arm.k_range(cell.max_concurrency or arm.server.max_num_seqs)
    if not METHODS[arm.method].drafts_exactly:
        least = 0  # it drafts what it finds, at most k
    if drafted is None:
        return f"{arm.name} drafted nothing: the engine does not speculate" if least else None
    if not least * (1 - TOKENS_PER_DRAFT_TOLERANCE) <= drafted <= most * (1 + TOKENS_PER_DRAFT_TOLERANCE):
        wanted = f"{least}" if least == most else f"{least} to {most}"
        return f"{arm.name} should draft {wanted} tokens a step, but the engine drafted {drafted:.2f}"
    return None
