"""What a reader has to know before any figure of a sweep: loosened guards, and blocks that do not compare. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from orchestrator.config import Hardware, SelectionRules, SweepConfig
from orchestrator.display import arm_name, listed
from orchestrator.ledger import LedgerView, measurement_key
from orchestrator.one_engine import public_version
from orchestrator.plan import Plan
from orchestrator.policy import measuring_nodes

TICKS_S = 0.1
"""CPU seconds that never speak against a block (see tasks.host_use)."""


def caveats(config: SweepConfig, plan: Plan, ledger: LedgerView) -> tuple[str, ...]:
    """One sentence each, the gravest first; empty for a sweep as it should be."""
    return (*_mixed(plan, ledger), *_without_baseline(plan, ledger), *_loosened(config), *_busy(config, ledger))


def _mixed(plan: Plan, ledger: LedgerView) -> Iterator[str]:
    """More than one engine version, or content of a local model, in one sweep."""
    names = {arm.id: arm_name(arm) for arm in plan.arms}
    engines: defaultdict[str, dict[str, None]] = defaultdict(dict)
    models: defaultdict[str, defaultdict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for visit in ledger.visits():
        name = names.get(visit.arm_id)
        if not visit.num_blocks or name is None:
            continue
        if visit.engine_version:
            engines[public_version(visit.engine_version)][name] = None
        for model, content in visit.local_models.items():
            models[model][content][name] = None
    across = "What is compared across them says nothing about speculation: measure again under another name=..."
    if len(engines) > 1:
        yield f"Several versions of the engine measured: {_groups(engines)}. {across}"
    for model, contents in models.items():
        if len(contents) > 1:
            yield f"The files of {model} changed under way: {_groups(contents)}. {across}"


def _groups(arms_by_value: Mapping[str, Iterable[str]]) -> str:
    return "; ".join(f"{value} ({', '.join(arms)})" for value, arms in arms_by_value.items())


def _without_baseline(plan: Plan, ledger: LedgerView) -> Iterator[str]:
    """Blocks of the baseline that stayed void on a node that measured others."""
    nodes = measuring_nodes(ledger)
    reasons: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for block in ledger.void_blocks():
        keys = [measurement_key(block.arm_id, block.block_id, phase, block.node) for phase in ("opening", "closing")]
        if block.phase == "opening" and block.node in nodes and not any(ledger.has(key) for key in keys):
            reasons[block.node, block.workload_id][block.block_id] = block.void_reason or ""
    for cell in plan.workloads:
        for node in nodes:
            if found := reasons.get((node, cell.id)):
                yield (
                    f"{cell.name}: the baseline has no valid figure for {len(found)} of {len(plan.blocks_of(cell.id))} "
                    f"blocks on node {node} ({listed(dict.fromkeys(found.values()))}), so no arm is compared on "
                    f"{'them' if len(found) > 1 else 'it'} there."
                )


def _loosened(config: SweepConfig) -> Iterator[str]:
    """Guards below their defaults."""
    hardware, rules = config.hardware, config.selection
    standard, usual = Hardware(name=hardware.name), SelectionRules()
    if config.server.launcher != "external" and _is_above(hardware.max_other_cpu_share, standard.max_other_cpu_share):
        yield _loose("hardware.max_other_cpu_share", hardware.max_other_cpu_share, standard.max_other_cpu_share) + (
            "blocks count that other processes disturbed more than is usually allowed."
        )
    if _is_above(hardware.node_tolerance, standard.node_tolerance):
        yield _loose("hardware.node_tolerance", hardware.node_tolerance, standard.node_tolerance) + (
            "nodes count that are slower than is usually allowed."
        )
    for key, means in (
        ("confidence", "more verdicts are wrong by chance"),
        ("min_blocks", "arms are judged on fewer blocks"),
        ("visit_noise", "intervals count with less noise between server starts"),
    ):
        value, default = getattr(rules, key), getattr(usual, key)
        if value < default:
            yield f"{_loose(f'selection.{key}', value, default)}{means}."


def _is_above(value: float | None, default: float | None) -> bool:
    """None is no limit."""
    return default is not None and (value is None or value > default)


def _loose(key: str, value: float | None, default: float | None) -> str:
    return f"A guard is loosened, {key}={'null' if value is None else f'{value:g}'} (default {default:g}): "


def _busy(config: SweepConfig, ledger: LedgerView) -> Iterator[str]:
    """Blocks that today's limit on other processes would not let in: measured before it was as it is now."""
    limit = config.hardware.max_other_cpu_share
    if limit is None or config.server.launcher == "external":
        return
    shares = []
    for block in ledger.valid_blocks():
        if block.host:
            too_many = block.host.other_cpu_cores - limit * block.host.num_cpus
            if too_many * block.wall_s > TICKS_S:
                shares.append(block.host.other_cpu_cores / block.host.num_cpus)
    if shares:
        yield (
            f"{len(shares)} measured blocks count though other processes used up to {100 * max(shares):.2g} % of the "
            f"CPUs: they were measured before hardware.max_other_cpu_share was {limit:g}."
        )
