"""What a sweep would do and take, without starting anything."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.cluster_budget import over_budget
from orchestrator.config import SweepConfig
from orchestrator.deploy import recommend_commands, serve_command
from orchestrator.errors import ConfigError, HubUnavailable
from orchestrator.forecast import Forecast, Spending
from orchestrator.inputs import load_prompts, memory_here
from orchestrator.measured_server import measured_servers
from orchestrator.memory import MemoryNeed, require_fit
from orchestrator.past_sweeps import foresee
from orchestrator.plan import Plan, PromptSet, plan_sweep, prompt_sets
from orchestrator.policies import policy_for
from orchestrator.policy import num_measurements
from orchestrator.records import Arm, Message, Prompt
from tasks.preflight import refuse_plan
from tasks.server_command import located


@dataclass(frozen=True)
class Preview:
    """A plan, and on one node what measuring it takes at most."""

    config: SweepConfig
    plan: Plan
    memory: MemoryNeed
    num_arms: int
    """Measured at most, besides the baseline."""
    num_blocks: int
    num_requests: int
    may_stop_early: bool
    expected: Forecast | None
    no_estimate: str | None
    """Why nothing is expected."""
    warnings: tuple[str, ...]

    @property
    def num_server_starts(self) -> int:
        """The baseline first and last; confirmations come on top."""
        return self.num_arms + 2

    @property
    def confirms(self) -> bool:
        return self.config.search.confirm and len(self.plan.arms) > 1


def preview(config: SweepConfig) -> Preview:
    """Plan a sweep and foresee what it takes.

    Where the hub cannot be reached it is planned all the same, with a warning: its counts then suppose that every
    prompt fits.

    Raises:
        ConfigError: the sweep would be refused.
        PromptsUnavailable: a dataset is not what its configuration says.
    """
    need = require_fit(config, memory_here(config))
    prompts, warnings = _prompts(config)
    plan = plan_sweep(config, prompts)
    refuse_plan(config, plan)
    policy = policy_for(config)
    num_arms = policy.max_arms(plan)
    num_blocks = num_measurements(plan, ["one node"], num_arms)
    expected, no_estimate = _expected(config, plan, prompts)
    return Preview(
        config=config,
        plan=plan,
        memory=need,
        num_arms=num_arms,
        num_blocks=num_blocks,
        num_requests=sum(len(block.requests) for block in plan.blocks) * num_blocks // max(1, len(plan.blocks)),
        may_stop_early=policy.may_stop_early,
        expected=expected,
        no_estimate=no_estimate,
        warnings=(*warnings, *_budget_warnings(config, expected)),
    )


def preview_data(found: Preview) -> dict[str, Any]:
    """It for programs: counts are of one node and at most, times are [least, most]."""
    return {
        "name": found.config.name,
        "plan_id": found.plan.id,
        "hardware": found.plan.baseline.hardware,
        "num_server_starts": found.num_server_starts,
        "num_blocks": found.num_blocks,
        "num_requests": found.num_requests,
        "memory": found.memory.model_dump() | {"fit": found.memory.fit},
        "expected": _expected_data(found.expected) if found.expected else None,
        "no_estimate": found.no_estimate,
        "warnings": list(found.warnings),
        "arms": [arm.model_dump(mode="json") | {"command": server_command(arm)} for arm in found.plan.arms],
        "workloads": [
            cell.model_dump(mode="json") | {"num_blocks": len(found.plan.blocks_of(cell.id))}
            for cell in found.plan.workloads
        ],
        "prompts": {name: count.model_dump() for name, count in found.plan.prompts.items()},
    }


def server_command(arm: Arm) -> str:
    """The shell command that an arm's server is started with."""
    spec = arm.server
    if spec.launcher == "external":
        return f"measured at {spec.url}, which is to be this arm; neither started nor stopped"
    if spec.launcher == "docker":
        return recommend_commands(measured_servers(arm), "").docker_run
    return shlex.join([*(spec.command or ["vllm"]), "serve", *serve_command(located(spec))])


def _expected(config: SweepConfig, plan: Plan, prompts: Mapping[str, PromptSet]) -> tuple[Forecast | None, str | None]:
    try:
        return foresee(config, plan, prompts), None
    except ConfigError as error:
        return None, str(error)


def _budget_warnings(config: SweepConfig, expected: Forecast | None) -> list[str]:
    if expected is None:
        return []
    try:
        warning = over_budget(config.cluster, [(expected, expected.num_nodes or 1)])
    except ConfigError as error:
        return [f"`sweep` would refuse to start: {error}"]
    return [warning] if warning else []


def _prompts(config: SweepConfig) -> tuple[dict[str, PromptSet], list[str]]:
    try:
        return load_prompts(config), []
    except HubUnavailable as error:
        enough = max(map(config.workload.block_len, config.workload.levels)) * config.workload.num_blocks
        placeholders = {name: _placeholders(name, enough) for name in config.datasets}
        return prompt_sets(config, placeholders), [f"prompts are not counted: {error}"]


def _placeholders(name: str, number: int) -> PromptSet:
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"{name} {i}"),)) for i in range(number))
    return PromptSet(prompts=prompts, num_read=number, num_too_long=0)


def _expected_data(expected: Forecast) -> dict[str, Any]:
    nodes = expected.num_nodes or 1
    return {
        "num_nodes": nodes,
        "typical": _spending_data(expected.typical(nodes)),
        "at_most": _spending_data(expected.at_most(nodes)),
        "basis": list(expected.basis),
    }


def _spending_data(spending: Spending) -> dict[str, list[float] | None]:
    ranges = {"wall_h": spending.wall_h, "machine_h": spending.machine_h, "usd": spending.usd}
    ranges["spot_usd"] = spending.spot_usd
    return {name: None if each is None else [each.low, each.high] for name, each in ranges.items()}
