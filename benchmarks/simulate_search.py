"""Adaptive search against the exhaustive grid on simulated machines with known truth.

    .venv/bin/python -m benchmarks.simulate_search [--landscapes 200] [--seed 0]

k in {0..15} x 3 datasets x concurrency {1, 4}; the real policies, ledger and selection, over noise between blocks
(3-6 %), visits (1-2 %) and nodes (2-5 %). Prints, per kind of landscape: throughput lost against the best arm (an
undecided workload runs the baseline), the share of wrong verdicts, coverage of the selection's intervals, and machine
time.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType

import numpy as np
from rich.console import Console

from benchmarks.landscapes import KINDS, LARGEST_K, Landscape, Machine, draw_landscape, k_at
from orchestrator.config import Dataset, Drafter, Hardware, Model, Search, SelectionRules, Speculation, SweepConfig
from orchestrator.config import Workload as WorkloadConfig
from orchestrator.decide import Decided, decide
from orchestrator.ledger import Ledger, key_of
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.policies import policy_for
from orchestrator.policy import Policy
from orchestrator.records import Arm, BlockRecord, LedgerRecord, Message, Prompt, Visit, WorkloadCell
from orchestrator.selection import Interval, WorkloadResult

DATASETS = ("code", "math", "chat")


class MemoryLedger(Ledger):
    """The ledger without its file: a simulated sweep needs no disk."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))

    def append(self, record: LedgerRecord) -> bool:
        if isinstance(record, BlockRecord) and self.has(key_of(record)):
            return False
        self._remember(record)
        return True


@dataclass(frozen=True)
class Outcome:
    """One sweep of one policy on one landscape; lists have one entry a workload, `covered` one an interval."""

    regrets: list[float]
    mix_regret: float | None
    """Loss at the mix, against the best static arm, of the setting recommended for all; None without one."""
    best_named: list[bool]
    """Where an arm was chosen: whether it or a contender is the truly best one, or as good within the tie tolerance."""
    predicted_off: list[float]
    """ln(predicted / true gain at the mix) of every setting that was confirmed."""
    confirmed_off: list[float]
    wrong: list[bool]
    undecided: list[bool]
    covered: list[bool]
    machine_s: float
    num_starts: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscapes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-blocks", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="fields of search, as numbers")
    options = parser.parse_args()
    changed = {key: float(value) for key, value in (item.split("=") for item in options.set)}
    outcomes: dict[str, list[tuple[Outcome, Outcome]]] = defaultdict(list)
    for number in range(options.landscapes):
        kind = KINDS[number % len(KINDS)]
        pair = simulate_one(kind, number, [options.seed], options.num_blocks, options.nodes, changed)
        outcomes[kind].append(pair)
    Console(soft_wrap=True).print(table(outcomes), markup=False, highlight=False)


def simulate_one(
    kind: str,
    number: int,
    seed: Sequence[int] = (0,),
    num_blocks: int = 4,
    num_nodes: int = 1,
    search: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Outcome, Outcome]:
    """Adaptive and grid on the landscape of that number; `search` changes fields of the adaptive one."""
    grid = make_config(Search(), num_blocks)
    adaptive = make_config(Search.model_validate({"strategy": "adaptive", **search}), num_blocks)
    plan = make_plan(grid)
    truth = draw_landscape(kind, plan, np.random.default_rng([*seed, number]))
    noise_seed = [*seed, number, 1]
    return simulate(adaptive, plan, truth, noise_seed, num_nodes), simulate(grid, plan, truth, noise_seed, num_nodes)


def make_config(search: Search, num_blocks: int) -> SweepConfig:
    return SweepConfig(
        name="simulated",
        hardware=Hardware(name="simulated"),
        model=Model(name="m", target="t", max_model_len=1024, drafters={"dflash": Drafter(model="d", block_size=16)}),
        datasets={name: Dataset(data_files=f"{name}.jsonl") for name in DATASETS},
        speculation=Speculation(method="dflash", num_speculative_tokens=tuple(range(1, LARGEST_K + 1))),
        workload=WorkloadConfig(max_concurrency=(1, 4), num_blocks=num_blocks),
        search=search,
    )


def make_plan(config: SweepConfig) -> Plan:
    needed = 8 * config.workload.num_blocks
    prompts = {
        name: PromptSet(
            prompts=tuple(Prompt(messages=(Message(role="user", content=f"{name} {i}"),)) for i in range(needed)),
            num_read=needed,
            num_too_long=0,
        )
        for name in config.datasets
    }
    return plan_sweep(config, prompts)


def simulate(config: SweepConfig, plan: Plan, truth: Landscape, seed: Sequence[int], num_nodes: int = 1) -> Outcome:
    """A whole sweep by `config`'s policy, then the selection, judged by the truth."""
    rng = np.random.default_rng(seed)
    block_sd, visit_sd, node_sd = rng.uniform(0.03, 0.06), rng.uniform(0.01, 0.02), rng.uniform(0.02, 0.05)
    machine = Machine(plan, truth, rng, block_sd=block_sd, visit_sd=visit_sd, node_sd=node_sd)
    ledger = MemoryLedger()
    run_policy(policy_for(config), plan, ledger, machine, [f"node-{number}" for number in range(num_nodes)])
    decided = decide(config, plan, ledger.valid_blocks())
    workloads = decided.workloads
    judged = [_judge(plan, truth, cell, found) for cell, found in zip(plan.workloads, workloads, strict=True)]
    return Outcome(
        regrets=[regret for regret, _ in judged],
        mix_regret=_mix_regret(plan, truth, decided.recommended),
        best_named=[
            _is_best_named(plan, truth, cell, found)
            for cell, found in zip(plan.workloads, workloads, strict=True)
            if found.verdict == "speculate"
        ],
        predicted_off=_offs(plan, truth, decided, [found.predicted for found in decided.confirmations]),
        confirmed_off=_offs(plan, truth, decided, [found.confirmed for found in decided.confirmations]),
        wrong=[is_wrong for _, is_wrong in judged],
        undecided=[found.verdict == "undecided" for found in workloads],
        covered=[
            hit for cell, found in zip(plan.workloads, workloads, strict=True) for hit in _covered(truth, cell, found)
        ],
        machine_s=machine.spent_s,
        num_starts=machine.num_starts,
    )


def run_policy(policy: Policy, plan: Plan, ledger: Ledger, machine: Machine, nodes: Sequence[str]) -> None:
    """Nodes take visits in turn, all at the same time, until none has anything to do."""
    started: list[Visit] = []
    while True:
        running: dict[str, Visit] = {}
        for node in nodes:
            visit = policy.next_visit(plan, ledger, started, running, node)
            if visit:
                started.append(visit)
                running[visit.id] = visit
        if not running:
            break
        for visit in running.values():
            for record in machine.run(visit):
                ledger.append(record)
    if not policy.is_complete(plan, ledger):
        raise RuntimeError(f"the policy stopped after {len(started)} visits, but its sweep is not complete")


def _judge(plan: Plan, truth: Landscape, cell: WorkloadCell, found: WorkloadResult) -> tuple[float, bool]:
    """Share of the best throughput lost by the choice, and whether the verdict is against the truth."""
    rates = [truth.tokens_per_s(cell, arm.num_speculative_tokens) for arm in plan.arms]
    chosen = rates[found.best.num_speculative_tokens] if found.best else rates[0]
    loses = found.verdict == "speculate" and chosen < rates[0]
    misses = found.verdict == "baseline" and max(rates) > rates[0] * (1 + 2 * SelectionRules().tie_tolerance)
    return 1 - chosen / max(rates), loses or misses


def _mix_regret(plan: Plan, truth: Landscape, chosen: Arm | None) -> float | None:
    best = max(_true_mix(plan, truth, arm) for arm in plan.arms)
    return 1 - math.exp(_true_mix(plan, truth, chosen) - best) if chosen else None


def _true_mix(plan: Plan, truth: Landscape, arm: Arm) -> float:
    """ln of the true gain at an even mix of the levels, as `orchestrator.mix` defines it."""
    logs = []
    for dataset in DATASETS:
        cells = [cell for cell in plan.workloads if cell.dataset == dataset]
        rates = [truth.tokens_per_s(cell, k_at(arm, int(cell.level))) for cell in cells]
        logs.append(math.log(sum(rates) / sum(truth.tokens_per_s(cell, 0) for cell in cells)))
    return fmean(logs)


def _offs(plan: Plan, truth: Landscape, decided: Decided, figures: Sequence[Interval | None]) -> list[float]:
    pairs = zip(decided.settings, figures, strict=True)
    return [math.log(figure.mean) - _true_mix(plan, truth, setting.arm) for setting, figure in pairs if figure]


def _is_best_named(plan: Plan, truth: Landscape, cell: WorkloadCell, found: WorkloadResult) -> bool:
    named = {choice.num_speculative_tokens for choice in (*found.contenders, *([found.best] if found.best else []))}
    measured = [arm.num_speculative_tokens for arm in found.arms[1:] if arm.gain]
    best = max(truth.tokens_per_s(cell, k) for k in measured)
    return max(truth.tokens_per_s(cell, k) for k in named) >= best * (1 - SelectionRules().tie_tolerance)


def _covered(truth: Landscape, cell: WorkloadCell, found: WorkloadResult) -> list[bool]:
    baseline = truth.tokens_per_s(cell, 0)
    return [
        arm.speedup.ci_low <= truth.tokens_per_s(cell, arm.num_speculative_tokens) / baseline <= arm.speedup.ci_high
        for arm in found.arms[1:]
        if arm.speedup and arm.num_blocks >= SelectionRules().min_blocks
    ]


def table(outcomes: dict[str, list[tuple[Outcome, Outcome]]]) -> str:
    """Markdown, a row per kind of landscape and policy."""
    headers = ["landscape", "search", "regret % mean", "p95", "max", "within 2 % of the best", "of the grid's choice"]
    headers += ["wrong verdicts %", "undecided %", "coverage %", "best is named %", "mix: regret %"]
    headers += ["predicted is off by %", "confirmed is off by %", "server starts", "hours"]
    headers += ["machine time / grid: mean", "p95", "sum"]
    rows = [headers, ["---"] * len(headers)]
    everything = [pair for pairs in outcomes.values() for pair in pairs]
    for kind, pairs in [*outcomes.items(), ("all", everything)]:
        rows.append([f"{kind} ({len(pairs)})", "adaptive", *_cells(pairs, 0), *_ratios(pairs)])
        rows.append(["", "grid", *_cells(pairs, 1), "", "", ""])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _ratios(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[str]:
    ratios = [adaptive.machine_s / grid.machine_s for adaptive, grid in pairs]
    total = sum(adaptive.machine_s for adaptive, _ in pairs) / sum(grid.machine_s for _, grid in pairs)
    return [f"{np.mean(ratios):.3f}", f"{np.quantile(ratios, 0.95):.3f}", f"{total:.3f}"]


def _cells(pairs: Sequence[tuple[Outcome, Outcome]], position: int) -> list[str]:
    mine = [pair[position] for pair in pairs]
    regrets = np.array([regret for outcome in mine for regret in outcome.regrets])
    theirs = np.array([regret for pair in pairs for regret in pair[1].regrets])
    close = [(1 - own) / (1 - other) >= 0.98 for own, other in zip(regrets, theirs, strict=True)]

    def percent(values: Sequence[bool]) -> str:
        return f"{100 * float(np.mean(values)):.1f}" if values else "-"

    return [
        f"{100 * regrets.mean():.2f}",
        f"{100 * np.quantile(regrets, 0.95):.2f}",
        f"{100 * regrets.max():.1f}",
        percent(list(regrets <= 0.02)),
        percent(close),
        percent([flag for outcome in mine for flag in outcome.wrong]),
        percent([flag for outcome in mine for flag in outcome.undecided]),
        percent([flag for outcome in mine for flag in outcome.covered]),
        percent([flag for outcome in mine for flag in outcome.best_named]),
        f"{100 * np.mean([outcome.mix_regret for outcome in mine if outcome.mix_regret is not None]):.2f}",
        _bias([off for outcome in mine for off in outcome.predicted_off]),
        _bias([off for outcome in mine for off in outcome.confirmed_off]),
        f"{np.mean([outcome.num_starts for outcome in mine]):.1f}",
        f"{math.fsum(outcome.machine_s for outcome in mine) / len(mine) / 3600:.3f}",
    ]


def _bias(offs: Sequence[float]) -> str:
    return f"{100 * float(np.mean(offs)):+.2f}" if offs else "-"


if __name__ == "__main__":
    main()
