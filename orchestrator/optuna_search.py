"""The search for spaces too large to measure: Optuna's TPE proposes arms, a pure function of plan and ledger.

A study is built anew from the ledger for every proposal, so that a sweep can go on from there at any time.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import JsonValue

from orchestrator.budget import Budget, server_start_s
from orchestrator.compare import compare_cells
from orchestrator.config import SelectionRules
from orchestrator.ids import canonical_json, content_id
from orchestrator.ledger import LedgerView
from orchestrator.measured import fold
from orchestrator.plan import Plan
from orchestrator.policy import WholeArms, is_closed, measuring_nodes, missing_blocks
from orchestrator.records import Arm, BlockRecord, Visit, VisitRecord

NUM_RANDOM = 5
"""Proposals before TPE has enough to go by; Optuna's own 10 would be half of a usual sweep."""

Point = Mapping[str, int | str]
"""Key -> an arm's coordinate there."""


class OptunaSearch(WholeArms):
    """So many arms as Optuna proposes, each with all its blocks; one that was begun is finished before the next."""

    seed: int
    num_proposals: int
    budget: Budget
    rules: SelectionRules

    def is_complete(self, plan: Plan, ledger: LedgerView) -> bool:
        """Whether what was proposed is measured, nothing more is due or affordable, and every node has closed."""
        is_due = any(self._next_arm(plan, ledger, (), (), node) for node in measuring_nodes(ledger))
        return is_closed(plan, ledger) and not is_due

    def dropped(self, plan: Plan, ledger: LedgerView) -> dict[tuple[str, str], str]:
        """(arm id, workload id) of the arms that were not proposed."""
        proposed = {arm.id for arm in _begun(plan, ledger)}
        left_out = [arm.id for arm in plan.arms[1:] if arm.id not in proposed]
        return {(arm_id, cell.id): "not proposed by search=optuna" for arm_id in left_out for cell in plan.workloads}

    def max_arms(self, plan: Plan) -> int:
        """The proposals; of a smaller plan, all arms."""
        return min(self.num_proposals, len(plan.arms) - 1)

    def _arms(self, plan: Plan, ledger: LedgerView, under_way: Collection[str]) -> Iterator[Arm]:
        begun = _begun(plan, ledger)
        yield from begun
        proposed = {arm.id for arm in begun} | set(under_way)
        if len(proposed) < self.max_arms(plan):
            yield self._propose(plan, ledger, begun, under_way)

    @property
    def may_stop_early(self) -> bool:
        return self.budget.is_limited

    def affords(self, plan: Plan, ledger: LedgerView, visits: Sequence[Visit]) -> bool:
        """Whether the budget takes `visits` and the closing baselines they ask for."""
        return self.budget.affords(plan, ledger, visits, lambda arm, block_ids: _visit_s(plan, ledger, block_ids))

    def _propose(self, plan: Plan, ledger: LedgerView, begun: Sequence[Arm], under_way: Collection[str]) -> Arm:
        """The arm that the sampler asks for; where that one was proposed before, the nearest that was not."""
        axes = _axes(plan)
        distributions = {axis.key: axis.distribution for axis in axes}
        running = [arm for arm in plan.arms if arm.id in under_way]
        taken = {arm.id for arm in (*begun, *running)}
        study = _study(int(content_id([self.seed, len(taken)]), 16) % 2**32)
        gains = self._log_gains(plan, ledger)
        comparable = {block.block_id for block in ledger.valid_blocks() if block.phase == "opening"}
        for arm in begun:
            if arm.id not in under_way:
                finished = comparable.isdisjoint(block.id for block in missing_blocks(plan, ledger, arm, "arm", ""))
                value = gains.get(arm.id) if finished else None
                study.add_trial(_trial(_point(axes, arm), distributions, value))
        for arm in running:
            trial = create_trial(state=TrialState.RUNNING, params=dict(_point(axes, arm)), distributions=distributions)
            study.add_trial(trial)
        wanted = study.ask(distributions).params
        free = [arm for arm in plan.arms[1:] if arm.id not in taken]
        return min(free, key=lambda arm: _distance(axes, _point(axes, arm), wanted))

    def _log_gains(self, plan: Plan, ledger: LedgerView) -> dict[str, float]:
        """Arm id -> mean over workloads of ln(gain), in pairs as the selection compares; only arms with all of them."""
        cells = fold(ledger.valid_blocks(), self.rules).cells
        estimates = compare_cells(plan, cells, self.rules).estimates
        means = {arm.id: [estimates.get((arm.id, cell.id)) for cell in plan.workloads] for arm in plan.arms[1:]}
        return {arm_id: fmean(found.mean for found in each if found) for arm_id, each in means.items() if all(each)}


@dataclass(frozen=True)
class _Axis:
    """What varies from arm to arm: the method, k or a server key.

    Numbers count by their rank, since grids are rarely even.
    """

    key: str
    choices: tuple[str, ...]
    """Values as JSON; numbers by size."""
    is_ordered: bool

    @property
    def distribution(self) -> BaseDistribution:
        return IntDistribution(0, len(self.choices) - 1) if self.is_ordered else CategoricalDistribution(self.choices)

    def coordinate(self, value: JsonValue) -> int | str:
        text = canonical_json(value)
        return self.choices.index(text) if self.is_ordered else text

    def distance(self, one: int | str, other: int | str) -> float:
        """From 0 to 1."""
        if isinstance(one, int) and isinstance(other, int):
            return abs(one - other) / (len(self.choices) - 1)
        return float(one != other)


def _axes(plan: Plan) -> tuple[_Axis, ...]:
    found: defaultdict[str, dict[str, JsonValue]] = defaultdict(dict)
    for arm in plan.arms[1:]:
        for key, value in _settings(arm).items():
            found[key][canonical_json(value)] = value
    return tuple(_axis(key, values) for key, values in found.items() if len(values) > 1)


def _axis(key: str, values: Mapping[str, JsonValue]) -> _Axis:
    is_ordered = all(type(value) is int for value in values.values())
    return _Axis(key, tuple(sorted(values, key=int if is_ordered else str)), is_ordered)


def _settings(arm: Arm) -> dict[str, JsonValue]:
    return {"method": arm.method, "num_speculative_tokens": arm.num_speculative_tokens, **arm.settings}


def _point(axes: Sequence[_Axis], arm: Arm) -> Point:
    settings = _settings(arm)
    return {axis.key: axis.coordinate(settings[axis.key]) for axis in axes}


def _distance(axes: Sequence[_Axis], one: Point, other: Point) -> float:
    return sum(axis.distance(one[axis.key], other[axis.key]) for axis in axes)


def _study(seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would announce every study on stderr
    sampler = TPESampler(seed=seed, n_startup_trials=NUM_RANDOM, multivariate=True, constant_liar=True)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _trial(point: Point, distributions: dict[str, BaseDistribution], value: float | None) -> FrozenTrial:
    """A measured arm; one that was given up (None) counts as the worst, since its neighbours may not start either."""
    state = TrialState.PRUNED if value is None else TrialState.COMPLETE
    return create_trial(state=state, value=value, params=dict(point), distributions=distributions)


def _begun(plan: Plan, ledger: LedgerView) -> list[Arm]:
    """The arms that the ledger knows, those with a block first, in the order in which they were begun."""
    records: list[BlockRecord | VisitRecord] = [*ledger.blocks(), *ledger.visits()]
    begun = dict.fromkeys(record.arm_id for record in records if record.phase == "arm")
    return [plan.arm(arm_id) for arm_id in begun]


def _visit_s(plan: Plan, ledger: LedgerView, block_ids: Collection[str]) -> float:
    """What a visit takes, supposing blocks last as long as those measured so far."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for block in ledger.valid_blocks():
        if block.phase != "closing":  # as in Budget
            seconds[block.workload_id].append(block.wall_s)
    wanted = set(block_ids)
    of_blocks = sum(fmean(seconds[b.workload_id] or [0.0]) for b in plan.blocks if b.id in wanted)
    return server_start_s(ledger) + of_blocks
