"""What a sweep that was interrupted, or whose budget is spent, has not measured: to be said before any figure. Pure."""

from collections import Counter

from orchestrator.config import Search, SweepConfig
from orchestrator.display import listed
from orchestrator.ledger import LedgerView
from orchestrator.plan import Plan
from orchestrator.policies import policy_for
from orchestrator.policy import gone_nodes, unclosed_nodes
from orchestrator.selection import Unfinished

MAX_NAMED = 6
"""Arms in one sentence."""
_BUDGETS = ("max_blocks", "max_node_hours", "max_usd")


def find_unfinished(config: SweepConfig, plan: Plan, ledger: LedgerView, command: str | None) -> Unfinished | None:
    """None where the search has measured all that it wants.

    Blocks that the search dropped do not count as missing; each arm's are counted once, and the baseline's likewise.

    Args:
        command: what was typed to measure.
    """
    policy = policy_for(config)
    budget = None
    if policy.is_complete(plan, ledger):
        budget = _budget(config.search)
        if budget is None or policy_for(_without_budget(config)).is_complete(plan, ledger):
            return None
    measured = {(block.arm_id, block.block_id) for block in ledger.valid_blocks() if block.phase in ("opening", "arm")}
    dropped = policy.dropped(plan, ledger)
    wanted = [(arm, block) for arm in plan.arms for block in plan.blocks if (arm.id, block.workload_id) not in dropped]
    have = Counter(arm.name for arm, block in wanted if (arm.id, block.id) in measured)
    want = Counter(arm.name for arm, _ in wanted)
    num_unknown = 0
    if config.search.strategy == "optuna":  # drops what it has not proposed (yet)
        num_unknown = max(0, policy.max_arms(plan) - sum(not arm.is_baseline and arm.name in want for arm in plan.arms))
    return Unfinished(
        num_blocks=have.total(),
        num_planned_blocks=want.total() + num_unknown * len(plan.blocks),
        may_stop_early=policy.may_stop_early,
        arms={name: (have[name], want[name]) for name in want if have[name] < want[name]},
        num_arms_to_propose=num_unknown,
        unclosed_nodes=tuple(sorted(unclosed_nodes(ledger) - gone_nodes(ledger))),
        budget=budget,
        command=command,
    )


def unfinished_text(found: Unfinished) -> str:
    """`Unfinished: 42 of 90 blocks measured; not measured: dflash-k3, dflash-k7 (6 of 30 blocks). ... continues.`"""
    most = "at most " if found.may_stop_early else ""
    parts = [f"Unfinished: {found.num_blocks} of {most}{found.num_planned_blocks} blocks measured"]
    lacking = _lacking(found)
    if lacking:
        more = f" and {len(lacking) - MAX_NAMED} more" if len(lacking) > MAX_NAMED else ""
        parts.append(f"not measured: {', '.join(lacking[:MAX_NAMED])}{more}")
    if found.unclosed_nodes:
        parts.append(f"no closing baseline on {listed(found.unclosed_nodes)}")
    if not lacking and not found.unclosed_nodes:
        parts.append("what is recommended was not measured again")
    return f"{'; '.join(parts)}. {_what_continues(found)}"


def _lacking(found: Unfinished) -> list[str]:
    """Of a search that may stop early an arm with some blocks may need no more."""
    names = []
    for name, (have, want) in found.arms.items():
        label = "the baseline" if name == "none" else name
        if have == 0:
            names.append(label)
        elif not found.may_stop_early or name == "none":
            names.append(f"{label} ({have} of {want} blocks)")
    if found.num_arms_to_propose:
        names.append(f"{found.num_arms_to_propose} not proposed yet")
    return names


def _what_continues(found: Unfinished) -> str:
    command = f"`{found.command}`" if found.command else "the command that it was measured with"
    if found.budget is None:
        return f"{command} continues.".replace("the command", "The command", 1)
    return f"The budget is spent ({found.budget}): {command} with a larger one continues."


def _budget(search: Search) -> str | None:
    limits = [f"search.{key}={value:g}" for key in _BUDGETS if (value := getattr(search, key)) is not None]
    return ", ".join(limits) or None


def _without_budget(config: SweepConfig) -> SweepConfig:
    return config.model_copy(update={"search": config.search.model_copy(update=dict.fromkeys(_BUDGETS))})
