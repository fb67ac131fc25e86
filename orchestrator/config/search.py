"""What is measured, and by which rules it is judged."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from orchestrator.config.base import PositiveInt, Strict


class Search(Strict):
    strategy: Literal["grid", "adaptive", "optuna"] = "grid"
    max_attempts: PositiveInt = 2
    """How often a visit is tried before its arm is given up on that node."""
    confirm: bool = True
    """Measure the recommended settings once more on fresh server starts, against the baseline."""
    num_proposals: PositiveInt = 20
    """`optuna` only: arms it measures at most, those taken over from an earlier sweep included."""
    first_blocks: PositiveInt = 3
    """Blocks of every workload (at least selection.min_blocks) that a confirmation measures, and that `adaptive` gives
    an arm at first; there all planned ones where the rest takes no longer than another server start."""
    min_expected_gain: float = Field(default=0.006, gt=0, lt=0.5)
    """`adaptive` only: what a visit over all blocks must be expected to gain, as a share of throughput, averaged over
    workloads (what it may find beyond a tie with the best so far, by prediction and margin); a shorter one less in
    proportion."""
    # Budgets, kept by `adaptive` and `optuna`.
    max_blocks: PositiveInt | None = None
    """Budget: block measurements of the whole sweep, both baselines included. None: no limit."""
    max_node_hours: float | None = Field(default=None, gt=0)
    """Budget: hours that nodes spend on visits, added up. None: no limit."""
    max_usd: float | None = Field(default=None, gt=0)
    """Budget: dollars, as hours that nodes spend on visits x hardware.usd_per_hour. None: no limit."""

    @model_validator(mode="after")
    def _nothing_ignored(self) -> Self:
        """A budget that nothing keeps to would be a surprise."""
        ignored = [
            f"{key}: only search={' and search='.join(readers)} {'reads' if len(readers) == 1 else 'read'} it"
            for key, readers in _READERS.items()
            if self.strategy not in readers and getattr(self, key) != type(self).model_fields[key].default
        ]
        if ignored:
            raise ValueError(f"{'; '.join(ignored)}, but search is {self.strategy}")
        return self


_READERS = {
    "num_proposals": ("optuna",),
    "min_expected_gain": ("adaptive",),
    "max_blocks": ("adaptive", "optuna"),
    "max_node_hours": ("adaptive", "optuna"),
    "max_usd": ("adaptive", "optuna"),
}
"""Key of Search -> the strategies that read it; the other keys are read by all."""


class Slo(Strict):
    """What a request must keep to count as good; None: no limit."""

    ttft_s: float | None = Field(default=None, gt=0)
    tpot_s: float | None = Field(default=None, gt=0)
    e2e_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("needs at least one of ttft_s, tpot_s, e2e_s")
        return self


class Constraints(Strict):
    """What an arm's 95th percentile on a workload must keep for the arm to be chosen there; None: no limit."""

    ttft_p95_s: float | None = Field(default=None, gt=0)
    tpot_p95_s: float | None = Field(default=None, gt=0)
    e2e_p95_s: float | None = Field(default=None, gt=0)


class SelectionRules(Strict):
    objective: Literal["throughput", "tpot", "e2e", "goodput", "cost"] = "throughput"
    """What an arm must beat the baseline in: output tokens/s, mean time per output token, mean time of a request, good
    requests/s by `slo`, or dollars per output token (the inverse of throughput on one kind of node, so it chooses the
    same)."""
    slo: Slo | None = None
    constraints: Constraints = Constraints()
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Of every interval; and that no arm is called a gain by chance, over all arms of a workload together."""
    tie_tolerance: float = Field(default=0.01, ge=0, lt=0.5)
    """Arms whose mean speedup is within this share of the best count as equal; the smallest k is taken."""
    min_blocks: Annotated[int, Field(ge=2)] = 3
    visit_noise: float = Field(default=0.015, ge=0, lt=0.5)
    """Standard deviation of ln(throughput) between two starts of the same server, supposed until the baseline's two
    visits on every node show more or less; no number of blocks reduces it."""

    @model_validator(mode="after")
    def _goodput_has_limits(self) -> Self:
        if self.objective == "goodput" and self.slo is None:
            raise ValueError("objective 'goodput' needs slo, for example selection.slo={ttft_s: 0.5, tpot_s: 0.05}")
        return self
