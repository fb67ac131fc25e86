"""What speaks against a sweep's figures: void blocks, failed visits and unstable nodes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_high

from orchestrator.display import arm_name
from orchestrator.ledger import LedgerView
from orchestrator.plan import Plan
from orchestrator.records import HostUse, NodeInfo

MAX_STEAL_SHARE = 0.01
MAX_OTHER_CPU_SHARE = 0.05
"""On a quiet machine with two CPUs, Ray and the driver among them, it was 1 to 4 %."""
MAX_LOAD_SHARE = 0.5
"""Of the node's CPUs; the driver's own start is below it."""
MAX_CLIENT_WAIT_SHARE = 0.05
"""In real time it is next to nothing, else up to 90 % where the engine has every core (benchmarks/client_wait.py)."""
CLOCK_TOLERANCE = 0.05


@dataclass(frozen=True)
class VoidBlock:
    arm: str
    workload: str
    block_index: int
    node: str
    reason: str


@dataclass(frozen=True)
class FailedVisit:
    arm: str
    node: str
    attempt: int
    error: str
    server_log: str | None


@dataclass(frozen=True)
class Unstable:
    """A node whose figures may be unstable, and why."""

    node: str
    reason: str


def void_blocks(plan: Plan, ledger: LedgerView) -> list[VoidBlock]:
    arms, workloads = _arm_names(plan), _workload_names(plan)
    return [
        VoidBlock(
            arm=arms.get(block.arm_id, block.arm_id),
            workload=workloads.get(block.workload_id, block.workload_id),
            block_index=block.block_index,
            node=block.node,
            reason=block.void_reason or "",
        )
        for block in ledger.void_blocks()
    ]


def failed_visits(plan: Plan, ledger: LedgerView) -> list[FailedVisit]:
    arms = _arm_names(plan)
    return [
        FailedVisit(
            arms.get(visit.arm_id, visit.arm_id), visit.node, visit.attempt, visit.error, server_log=visit.server_log
        )
        for visit in ledger.visits()
        if visit.error is not None
    ]


def unstable_nodes(ledger: LedgerView) -> list[Unstable]:
    """Reasons to doubt a node's figures, in the order of the nodes; nodes that were set aside are left out."""
    visits: dict[str, list[NodeInfo]] = defaultdict(list)
    for visit in ledger.visits():
        if visit.node_info and visit.node not in ledger.set_aside:
            visits[visit.node].append(visit.node_info)
    uses: dict[str, list[HostUse]] = defaultdict(list)
    waits: dict[str, list[float]] = defaultdict(list)
    for block in ledger.valid_blocks():
        if block.host:
            uses[block.node].append(block.host)
        if block.client_wait_share is not None:
            waits[block.node].append(block.client_wait_share)
    clocks = {node: clock for node, found in uses.items() if (clock := _median_clock(found)) is not None}
    return [
        Unstable(node, reason)
        for node in sorted(visits.keys() | uses.keys() | waits.keys())
        for reason in (
            *_setup_reasons(visits[node]),
            *_load_reasons(uses[node]),
            *_wait_reasons(waits[node]),
            *_clock_reasons(node, clocks),
        )
    ]


def _setup_reasons(visits: Sequence[NodeInfo]) -> Iterator[str]:
    """As the node's first visit found it: later the load is the sweep's own."""
    for info in visits[:1]:
        if info.governor not in (None, "performance"):
            yield f"CPU frequency governor is {info.governor}; set it to performance"
        if info.transparent_hugepage == "never":
            yield "transparent huge pages are off; set them to madvise or always"
        if info.load_average_1m > MAX_LOAD_SHARE * (info.logical_cores or 1):
            yield f"load average was {info.load_average_1m:.2g} on {info.logical_cores} CPUs before its first server"


def _load_reasons(uses: Sequence[HostUse]) -> Iterator[str]:
    stolen = [use.steal_share for use in uses if use.steal_share is not None]
    if stolen and fmean(stolen) > MAX_STEAL_SHARE:
        yield f"the hypervisor took {100 * fmean(stolen):.2g} % of its CPU time away; ask for dedicated cores"
    others = [use.other_cpu_cores / use.num_cpus for use in uses]
    if others and fmean(others) > MAX_OTHER_CPU_SHARE:
        yield f"other processes used {100 * fmean(others):.2g} % of its CPUs beside the engine"


def _wait_reasons(shares: Sequence[float]) -> Iterator[str]:
    if shares and fmean(shares) > MAX_CLIENT_WAIT_SHARE:
        yield (
            f"the load generator waited for a CPU {100 * fmean(shares):.2g} % of the time, which slows the baseline "
            "more than an arm; run as root or with CAP_SYS_NICE, raise the limit on rtprio to 1, or keep cores aside "
            "with hardware.reserved_cores"
        )


def _clock_reasons(node: str, clocks: Mapping[str, float]) -> Iterator[str]:
    fleet = median_high(clocks.values()) if clocks else 0.0
    clock = clocks.get(node)
    if clock is not None and clock < (1 - CLOCK_TOLERANCE) * fleet:
        yield f"its clock was {clock:,.0f} MHz under load, the fleet's {fleet:,.0f} MHz"


def _median_clock(uses: Sequence[HostUse]) -> float | None:
    clocks = [use.clock_mhz for use in uses if use.clock_mhz is not None]
    return median(clocks) if clocks else None


def _arm_names(plan: Plan) -> dict[str, str]:
    return {arm.id: arm_name(arm) for arm in plan.arms}


def _workload_names(plan: Plan) -> dict[str, str]:
    return {workload.id: workload.name for workload in plan.workloads}
