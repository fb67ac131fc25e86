"""What a sweep will take: machine-hours, wall time on N nodes and dollars, as ranges, with what they rest on. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2
from types import MappingProxyType

from orchestrator.budget import Budget
from orchestrator.config import Fleet, Hardware, SweepConfig
from orchestrator.errors import ConfigError
from orchestrator.memory import weights_gb
from orchestrator.methods import METHODS
from orchestrator.past_times import PastTimes
from orchestrator.plan import Plan
from orchestrator.policies import policy_for
from orchestrator.policy import num_first
from orchestrator.records import Arm, Block, WorkloadCell
from orchestrator.token_time import OF_COPIES, OF_PEAK, Range, Roofline, total

START_S = (18.0, 60.0)
"""A server's start and stop and the node's probe besides loading weights: 20 to 24 s with warm caches on two cores, 51
to 57 s where everything is compiled anew."""
LOAD_GB_PER_S = (0.2, 2.0)
"""Weights from disk: a network volume at first, the page cache later. A supposition."""
PROMPT_TOKENS = 150.0
"""A prompt's length where prompts were not counted: HumanEval's mean is about that."""
OPEN_LOOP_STREAMS = 4
"""Requests under way at a time in an open loop: a supposition, which matters only where the server does not keep up."""
CONFIRMATIONS = 2
"""Visits that confirm what is recommended, at most: the static setting and the schedule."""


@dataclass(frozen=True)
class Spending:
    """What some number of visits costs on some number of nodes."""

    wall_h: Range
    machine_h: Range
    """Nodes x wall time: a node costs while it waits for the others, too."""
    usd: Range | None
    """On demand, the fleet's fixed cost included; None where hardware.usd_per_hour is not known."""
    spot_usd: Range | None


@dataclass(frozen=True)
class Forecast:
    """Times of a whole sweep's visits."""

    baseline_s: Range
    """A visit of the baseline over all blocks."""
    arm_s: Range
    """The mean visit of another arm over all blocks."""
    confirmation_s: Range
    num_arms: int
    """Measured at most, besides the baseline."""
    typical_arms: int
    num_confirmations: int
    hardware: Hardware
    fleet: Fleet | None
    max_node_hours: float | None
    """The search's own budget."""
    basis: tuple[str, ...]

    def typical(self, num_nodes: int) -> Spending:
        """What the search is expected to take; half of the confirmations."""
        return self._spending(self.typical_arms, ceil(self.num_confirmations / 2), num_nodes)

    def at_most(self, num_nodes: int) -> Spending:
        """Every arm over all blocks, and every confirmation."""
        return self._spending(self.num_arms, self.num_confirmations, num_nodes)

    def _spending(self, num_arms: int, num_confirmations: int, num_nodes: int) -> Spending:
        servers = num_nodes * self.hardware.servers_per_node
        rounds = [self.baseline_s.scaled(2), self.arm_s.scaled(ceil(num_arms / servers))]
        rounds.append(self.confirmation_s.scaled(ceil(num_confirmations / servers)))
        wall_h = total(rounds).scaled(1 / 3600)
        if self.max_node_hours is not None:
            limit = self.max_node_hours / servers
            wall_h = Range(min(wall_h.low, limit), min(wall_h.high, limit))
        machine_h = wall_h.scaled(num_nodes)
        usd, spot_usd = (
            None if price is None else wall_h.scaled(num_nodes * price + self.fixed_usd_per_hour)
            for price in (self.hardware.usd_per_hour, self.hardware.spot_usd_per_hour)
        )
        return Spending(wall_h, machine_h, usd, spot_usd)

    @property
    def fixed_usd_per_hour(self) -> float:
        """Of the fleet's head and network."""
        return self.fleet.fixed_usd_per_hour if self.fleet else 0.0

    @property
    def num_nodes(self) -> int | None:
        """Of the fleet; None where the sweep does not make its machines."""
        size = self.fleet.size_of(self.hardware.name) if self.fleet else None
        return max(1, size.desired_size) if size else None


def forecast(
    config: SweepConfig,
    plan: Plan,
    prompt_tokens: Mapping[str, float],
    past: PastTimes,
    bandwidth_gb_per_s: float | None = None,
    log_s: Mapping[str, float] = MappingProxyType({}),
) -> Forecast:
    """What measuring `plan` takes.

    Args:
        prompt_tokens: dataset -> mean length of its prompts, where they were counted.
        past: times of earlier sweeps with the same model and hardware.
        bandwidth_gb_per_s: what a node was found to have, where its profile does not say.
        log_s: request log -> seconds from its first request to its last.

    Raises:
        ConfigError: neither earlier sweeps nor model and hardware profile say enough; the message says what is missing.
    """
    times = Times(config, plan, prompt_tokens, past, bandwidth_gb_per_s, log_s)
    policy, others = policy_for(config), [arm for arm in plan.arms if not arm.is_baseline]
    num_arms = policy.max_arms(plan)
    first = [block for block in plan.blocks if block.index < num_first(config.search, config.selection)]
    visits = [times.visit_s(arm, plan.blocks) for arm in others]
    return Forecast(
        baseline_s=times.visit_s(plan.baseline, plan.blocks),
        arm_s=total(visits).scaled(1 / len(visits)) if visits else Range(0, 0),
        confirmation_s=_mean([times.visit_s(arm, first) for arm in others]),
        num_arms=num_arms,
        typical_arms=typical_arms(config, num_arms),
        num_confirmations=CONFIRMATIONS if config.search.confirm and others else 0,
        hardware=config.hardware,
        fleet=config.cluster.aws,
        max_node_hours=Budget.of(config).max_node_hours,
        basis=times.basis,
    )


def typical_arms(config: SweepConfig, num_arms: int) -> int:
    """Visits of arms that `adaptive` makes: 3 of 4 on the demo and 5 of 15 on its finest grid; the others make all."""
    if config.search.strategy != "adaptive" or num_arms == 0:
        return num_arms
    return min(num_arms, 1 + ceil(log2(num_arms)))


class Times:
    """Where a visit's seconds come from: earlier sweeps where they have it, else the roofline.

    Arguments and errors as for `forecast`.
    """

    def __init__(
        self,
        config: SweepConfig,
        plan: Plan,
        prompt_tokens: Mapping[str, float],
        past: PastTimes,
        bandwidth_gb_per_s: float | None,
        log_s: Mapping[str, float],
    ) -> None:
        self._config, self._plan, self._past = config, plan, past
        self._prompt_tokens, self._log_s = prompt_tokens, log_s
        self._peak, self._copied = config.hardware.memory_bandwidth_gb_per_s, bandwidth_gb_per_s
        self._cells = {cell.id: cell for cell in plan.workloads}
        pairs = [(arm, cell) for arm in plan.arms for cell in plan.workloads]
        self._missing = [(arm, cell) for arm, cell in pairs if past.of(arm, cell) is None]
        if self._missing:
            self._require_roofline()

    def visit_s(self, arm: Arm, blocks: Sequence[Block]) -> Range:
        """One visit: start, warm-up of every workload, blocks, stop."""
        by_workload: dict[str, int] = {}
        for block in blocks:
            by_workload[block.workload_id] = by_workload.get(block.workload_id, 0) + len(block.requests)
        parts = [self.overhead_s(arm)]
        for workload_id, num_requests in by_workload.items():
            parts.append(self.load_s(arm, self._cells[workload_id], num_requests))
        return total(parts)

    def load_s(self, arm: Arm, cell: WorkloadCell, num_requests: int) -> Range:
        """What the requests take the server; an open loop lasts at least as long as they take to arrive."""
        work = self._token_s(arm, cell).scaled(num_requests * cell.output_len)
        if not cell.is_open_loop:
            return work
        planned = sum(len(block.requests) for block in self._plan.blocks_of(cell.id))
        arriving_s = (
            num_requests / cell.request_rate
            if cell.request_rate
            else self._log_s.get(cell.dataset, 0.0) / (cell.log_speed or 1) * num_requests / planned
        )
        return Range(max(arriving_s, work.low), max(arriving_s, work.high))

    @property
    def basis(self) -> tuple[str, ...]:
        measured = len(self._plan.arms) * len(self._plan.workloads) - len(self._missing)
        said = []
        if measured:
            sweeps = ", ".join(self._past.sweeps)
            said.append(f"{measured} of {measured + len(self._missing)} arms x workloads as measured in {sweeps}")
        if self._missing:
            said.append(self._roofline_text())
        if self._past.overhead_s is None:
            said.append(f"server starts of {START_S[0]:g} to {START_S[1]:g} s besides loading the weights")
        return tuple(said)

    def overhead_s(self, arm: Arm) -> Range:
        """Of a visit besides its blocks: start, warm-up, stop."""
        if self._past.overhead_s is not None:
            return self._past.overhead_s
        load_gb = (weights_gb(self._config.model) or 0) + self._drafter_gb(arm)
        start = Range(START_S[0] + load_gb / LOAD_GB_PER_S[1], START_S[1] + load_gb / LOAD_GB_PER_S[0])
        warm_up = [
            self._token_s(arm, cell).scaled(len(cell.warmup_prompt_indices) * cell.output_len)
            for cell in self._cells.values()
        ]
        return total([start, *warm_up])

    def _drafter_gb(self, arm: Arm) -> float:
        drafter = self._config.model.drafters.get(arm.method)
        return (drafter.weight_gb if drafter else None) or 0.0

    def _token_s(self, arm: Arm, cell: WorkloadCell) -> Range:
        measured = self._past.of(arm, cell)
        if measured is not None:
            return measured
        prompt_len = self._prompt_tokens.get(cell.dataset, PROMPT_TOKENS)
        streams = cell.max_concurrency or OPEN_LOOP_STREAMS
        return self._rooflines[arm.method].token_s(arm.num_speculative_tokens, streams, cell.output_len, prompt_len)

    @cached_property
    def _rooflines(self) -> Mapping[str, Roofline]:
        """By speculation method."""
        model = self._config.model
        gb_per_s, (low, high) = (self._peak, OF_PEAK) if self._peak else (self._copied or 0, OF_COPIES)
        gb_per_s /= self._config.hardware.servers_per_node
        reads = Range(low * gb_per_s, high * gb_per_s)
        methods = ("none", *self._config.methods)
        return {method: Roofline(model, model.drafters.get(method), method, reads) for method in methods}

    def _require_roofline(self) -> None:
        missing = []
        if weights_gb(self._config.model) is None:
            missing.append("model.parameters_billion")
        if self._peak is None and self._copied is None:
            missing.append("hardware.memory_mt_per_s and hardware.memory_channels")
        if missing:
            raise ConfigError(
                f"no estimate of time and cost: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not "
                "given, and no earlier sweep in results_dir measured this model on this hardware"
            )

    def _roofline_text(self) -> str:
        drafters = self._config.model.drafters
        drafting = [drafters.get(method) for method in self._config.methods if METHODS[method].passes != "none"]
        reads = self._rooflines["none"].reads_gb_per_s
        text = f"the roofline: {_weights(weights_gb(self._config.model))} at {reads.low:,.0f} to {reads.high:,.0f} GB/s"
        if any(drafter is None or drafter.weight_gb is None for drafter in drafting):
            text += ", the drafter's size supposed"
        return text


def _weights(gb: float | None) -> str:
    return "" if gb is None else f"{gb:,.1f} GB of weights" if gb >= 1 else f"{1000 * gb:,.1f} MB of weights"


def _mean(ranges: list[Range]) -> Range:
    return total(ranges).scaled(1 / len(ranges)) if ranges else Range(0, 0)
