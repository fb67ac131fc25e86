"""How near the baseline comes to the roofline: what a step reads of the weights, over what the memory gives. Pure.

A token of the baseline cannot come sooner than its weights are read. Where the share is low, something besides the
memory takes the time, and a verification of more tokens costs little less than as many steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from orchestrator.config import Model
from orchestrator.display import baseline_of
from orchestrator.memory import weights_gb
from orchestrator.records import VisitRecord
from orchestrator.selection import WorkloadResult
from orchestrator.token_time import read_gb


@dataclass(frozen=True)
class Achieved:
    """One workload's baseline against the memory's speed."""

    workload: WorkloadResult
    read_gb: float
    """Weights that one of its steps reads, 10^9 bytes; keys and values come on top."""
    step_s: float
    copies_gb_per_s: float
    """Median over the nodes' probes, bytes read and written."""

    @property
    def achieved_gb_per_s(self) -> float:
        return self.read_gb / self.step_s

    @property
    def roofline_step_s(self) -> float:
        return self.read_gb / self.copies_gb_per_s

    @property
    def share(self) -> float:
        """Above 1 where reading alone is faster than copying, or a cache holds part of the weights."""
        return self.achieved_gb_per_s / self.copies_gb_per_s


def achieved(model: Model, workloads: Iterable[WorkloadResult], visits: Iterable[VisitRecord]) -> list[Achieved]:
    """Where the model's weights, the nodes' bandwidth and the time of a baseline step are known: closed loops only."""
    probes = [
        info.memory_bandwidth_gb_per_s
        for visit in visits
        if (info := visit.node_info) and info.memory_bandwidth_gb_per_s is not None
    ]
    if weights_gb(model) is None or not probes:
        return []
    return [
        Achieved(workload, read_gb(model, workload.max_concurrency), baseline.step_s, median(probes))
        for workload in workloads
        if workload.max_concurrency is not None and (baseline := baseline_of(workload)) and baseline.step_s
    ]
