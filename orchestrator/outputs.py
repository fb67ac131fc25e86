"""Whether an arm says what the baseline says at temperature 0, and where they part.

The ledger's hashes tell which outputs differ. Only for those are the raw files read, one at a time, for the token
where they part.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

import numpy as np
from scipy import stats

from orchestrator.plan import Plan
from orchestrator.records import Arm, BlockRecord, RawRequest, WorkloadCell

SIGNIFICANCE = 0.05
"""An arm differs more often than the baseline from itself where chance would do that less often than this."""

ReadRaw = Callable[[str], Iterable[RawRequest]]
"""Visit id -> its requests as they were kept; none where there is no such file."""
TokenIds = tuple[int, ...]


@dataclass(frozen=True)
class OutputMatch:
    """One arm's outputs on one workload against the opening baseline's, same prompts and node; the baseline's own are
    its closing ones."""

    arm: Arm
    workload: WorkloadCell
    num_prompts: int
    num_different: int
    positions: Mapping[int, int]
    """Position (from 0) of the first token that differs -> number of prompts; empty where token ids are not known."""
    reason: str | None
    """Why they differ, as far as it can be known; None where they do not."""

    @property
    def identical_share(self) -> float:
        return 1 - self.num_different / self.num_prompts

    @property
    def first_position(self) -> int | None:
        return min(self.positions, default=None)

    @property
    def median_position(self) -> float | None:
        return median(Counter(self.positions).elements()) if self.positions else None


def compare_outputs(plan: Plan, blocks: Collection[BlockRecord], read_raw: ReadRaw) -> tuple[OutputMatch, ...]:
    """One entry for each workload at temperature 0 and arm (the baseline first) of which outputs compare.

    Args:
        blocks: the valid ones, in any order; gone through twice.
    """
    tallies: defaultdict[tuple[str, str], _Tally] = defaultdict(_Tally)
    different = list(_count(plan, blocks, tallies))
    for workload_id, arm_id, position in _positions(different, read_raw):
        tallies[workload_id, arm_id].positions[position] += 1
    matches = []
    for cell in plan.workloads:
        itself = tallies.get((cell.id, plan.baseline.id))
        for arm in plan.arms:
            tally = tallies.get((cell.id, arm.id))
            if tally:
                reason = _reason(arm, tally, itself) if tally.num_different else None
                matches.append(OutputMatch(arm, cell, tally.num_prompts, tally.num_different, tally.positions, reason))
    return tuple(matches)


@dataclass
class _Tally:
    num_prompts: int = 0
    num_different: int = 0
    positions: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Different:
    """A block whose outputs are not all the baseline's."""

    workload_id: str
    arm_id: str
    block_id: str
    visit_id: str
    reference_id: str
    """The baseline's visit."""
    requests: tuple[tuple[int, int], ...]
    """(prompt index, turn) of what was answered differently."""


def _count(
    plan: Plan, blocks: Collection[BlockRecord], tallies: Mapping[tuple[str, str], _Tally]
) -> Iterator[_Different]:
    """Fills `tallies` by (workload id, arm id)."""
    greedy = {cell.id for cell in plan.workloads if cell.temperature == 0}
    prompts = {block.id: block.requests for block in plan.blocks if block.workload_id in greedy}
    references = _references(plan, blocks)
    for block in blocks:
        reference = references.get((block.node, block.block_id))
        is_reference = block.phase == "opening" or (reference and reference.visit_id == block.visit_id)
        if block.block_id not in prompts or reference is None or is_reference:
            continue
        pairs = zip(prompts[block.block_id], block.output_sha256, reference.output_sha256, strict=True)
        requests = tuple(request for request, ours, theirs in pairs if ours != theirs)
        tally = tallies[block.workload_id, block.arm_id]
        tally.num_prompts += len(block.output_sha256)
        tally.num_different += len(requests)
        if requests:
            yield _Different(
                block.workload_id, block.arm_id, block.block_id, block.visit_id, reference.visit_id, requests
            )


@dataclass(frozen=True)
class _Reference:
    visit_id: str
    output_sha256: tuple[str, ...]


def _references(plan: Plan, blocks: Iterable[BlockRecord]) -> dict[tuple[str, str], _Reference]:
    """(node, block id) -> the baseline's outputs: the opening ones, where those are missing the closing ones."""
    found: dict[tuple[str, str], _Reference] = {}
    for block in blocks:
        key = (block.node, block.block_id)
        if block.arm_id == plan.baseline.id and (block.phase == "opening" or key not in found):
            found[key] = _Reference(block.visit_id, block.output_sha256)
    return found


def _positions(different: Sequence[_Different], read_raw: ReadRaw) -> Iterator[tuple[str, str, int]]:
    """(workload id, arm id, first position that differs) of each output whose token ids are known on both sides.

    Holds the baseline's differing outputs of one visit at a time.
    """
    ordered = sorted(different, key=lambda block: (block.reference_id, block.visit_id))
    for reference_id, against in groupby(ordered, key=lambda block: block.reference_id):
        blocks = list(against)
        theirs = dict(_outputs(reference_id, blocks, read_raw))
        for visit_id, of_visit in groupby(blocks, key=lambda block: block.visit_id):
            by_id = {block.block_id: block for block in of_visit}
            for key, ours in _outputs(visit_id, by_id.values(), read_raw):
                position = first_difference(ours, theirs[key]) if key in theirs else None
                if position is not None:
                    yield by_id[key[0]].workload_id, by_id[key[0]].arm_id, position


def _outputs(
    visit_id: str, blocks: Iterable[_Different], read_raw: ReadRaw
) -> Iterator[tuple[tuple[str, int, int], TokenIds]]:
    """((block id, prompt index, turn), token ids) of the visit's requests that `blocks` name."""
    wanted = {(block.block_id, *request) for block in blocks for request in block.requests}
    for request in read_raw(visit_id):
        key = (request.block_id, request.prompt_index, request.turn)
        if key in wanted and request.output_token_ids is not None:
            yield key, request.output_token_ids


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Position from 0; where one is the beginning of the other, that of the first token it lacks; None where equal."""
    for position, (own, other) in enumerate(zip(ours, theirs, strict=False)):
        if own != other:
            return position
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _reason(arm: Arm, tally: _Tally, itself: _Tally | None) -> str:
    if arm.is_baseline:
        return "the engine does not repeat itself: batch composition, or nearly equal logits, tips a token"
    if itself and itself.num_different and not _more_often(tally, itself):
        return (
            f"the baseline differs from itself on {itself.num_different} of {itself.num_prompts} prompts, about as "
            "often: the engine does not repeat itself (batch composition, or nearly equal logits), so this is no sign "
            "against speculation"
        )
    repeats = "" if itself else "; whether the baseline repeats itself was not measured"
    if arm.server.dtype == "float32":
        return (
            "the model runs in float32, where rounding seldom tips a token: look at the method, its drafter and the "
            f"engine's version{repeats}"
        )
    dtype = "the checkpoint's dtype" if arm.server.dtype == "auto" else arm.server.dtype
    return (
        f"rounding of nearly equal logits in {dtype} can do that: checking several tokens at once adds up in another "
        f"order. model.dtype=float32 tells{repeats}"
    )


def _more_often(tally: _Tally, itself: _Tally) -> bool:
    """By Fisher's exact test, one-sided."""
    table = np.array([[each.num_different, each.num_prompts - each.num_different] for each in (tally, itself)])
    return bool(stats.fisher_exact(table, alternative="greater").pvalue < SIGNIFICANCE)
