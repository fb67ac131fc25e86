"""`orchestrator plan`: what a sweep would do, without starting anything."""

import shlex
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from orchestrator.cluster_budget import over_budget
from orchestrator.config import SweepConfig
from orchestrator.deploy import recommend_commands
from orchestrator.errors import ConfigError, HubUnavailable
from orchestrator.forecast_text import basis_text, forecast_table
from orchestrator.memory import require_fit
from orchestrator.past_sweeps import foresee
from orchestrator.plan import Plan, PromptSet, plan_sweep, prompt_sets
from orchestrator.policies import policy_for
from orchestrator.policy import num_measurements
from orchestrator.records import Arm, Message, Prompt
from tasks.host import probe_node
from tasks.preflight import refuse_plan
from tasks.prompts import load_prompt_set, tokenizer_count, use_cache_without_network
from tasks.server_command import serve_arguments


def print_plan(config: SweepConfig, out: Console, err: Console) -> None:
    """Print arms with their server commands, workloads and counts.

    Where the hub cannot be reached the plan is shown all the same, with a warning: its counts then suppose that every
    prompt fits.
    """
    need = require_fit(config, memory_here(config))
    prompts = _prompts(config, err)
    plan = plan_sweep(config, prompts)
    refuse_plan(config, plan)
    out.print(_arms(plan))
    out.print(_workloads(plan))
    policy = policy_for(config)
    num_arms, at_most = policy.max_arms(plan), "at most " if policy.may_stop_early else ""
    blocks = num_measurements(plan, ["one node"], num_arms)
    requests = sum(len(block.requests) for block in plan.blocks) * blocks // max(1, len(plan.blocks))
    out.print(
        f"plan {plan.id}: {len(plan.arms)} arms x {len(plan.workloads)} workloads; {_proposals(plan, num_arms)}"
        f"on one node {at_most}{num_arms + 2} server starts (the baseline first and last), {blocks} blocks, "
        f"{requests} requests{_confirmations(config, plan)}",
        highlight=False,
    )
    out.print(f"memory: {need.fit}: {need}", highlight=False, markup=False)
    _print_forecast(config, plan, prompts, out, err)
    for arm in plan.arms:
        settings = "".join(f" {key}={value}" for key, value in arm.settings.items())
        out.print(f"\n{arm.name}{settings}", style="bold", soft_wrap=True, highlight=False, markup=False)
        out.print(_command(arm), soft_wrap=True, highlight=False, markup=False)


def _confirmations(config: SweepConfig, plan: Plan) -> str:
    has_any = config.search.confirm and len(plan.arms) > 1
    return "; then up to two more starts, to confirm what is recommended" if has_any else ""


def memory_here(config: SweepConfig) -> float | None:
    """This machine's memory, 10^9 bytes, where the sweep runs on it; None on a cluster, whose profile has to say it."""
    return probe_node().memory_gb if config.cluster.is_this_machine else None


def _print_forecast(
    config: SweepConfig, plan: Plan, prompts: Mapping[str, PromptSet], out: Console, err: Console
) -> None:
    try:
        expected = foresee(config, plan, prompts)
    except ConfigError as error:
        out.print(str(error), highlight=False, markup=False)
        return
    out.print(forecast_table(expected))
    out.print(basis_text(expected), highlight=False, markup=False)
    try:
        warning = over_budget(config.cluster, [(expected, expected.num_nodes or 1)])
    except ConfigError as error:
        warning = f"`sweep` would refuse to start: {error}"
    if warning:
        err.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)


def load_prompts(config: SweepConfig) -> dict[str, PromptSet]:
    """Every dataset's usable prompts, counted by the target's tokenizer and cut into buckets by that.

    Raises:
        PromptsUnavailable: a dataset or the tokenizer cannot be had.
    """
    use_cache_without_network(config.model, config.datasets.values())
    count = tokenizer_count(config.model)
    room = config.model.max_model_len - config.workload.output_len
    found = {
        name: load_prompt_set(
            name,
            dataset,
            count=count,
            max_prompt_tokens=room,
            output_len=config.workload.output_len,
            seed=config.seed,
        )
        for name, dataset in config.datasets.items()
    }
    return prompt_sets(config, found)


def _prompts(config: SweepConfig, err: Console) -> dict[str, PromptSet]:
    try:
        return load_prompts(config)
    except HubUnavailable as error:
        err.print(f"warning: prompts are not counted: {error}", style="yellow", markup=False, highlight=False)
    enough = max(map(config.workload.block_len, config.workload.levels)) * config.workload.num_blocks
    return prompt_sets(config, {name: _placeholders(name, enough) for name in config.datasets})


def _placeholders(name: str, number: int) -> PromptSet:
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"{name} {i}"),)) for i in range(number))
    return PromptSet(prompts=prompts, num_read=number, num_too_long=0)


def _proposals(plan: Plan, num_arms: int) -> str:
    num_planned = len(plan.arms) - 1
    return f"at most {num_arms} of {num_planned} besides the baseline are proposed; " if num_arms < num_planned else ""


def _arms(plan: Plan) -> Table:
    table = Table(title=f"Arms on {plan.baseline.hardware}", title_justify="left")
    for header in ("arm", "id"):
        table.add_column(header, no_wrap=True)
    for arm in plan.arms:
        table.add_row(arm.name, arm.id)
    return table


def _workloads(plan: Plan) -> Table:
    table = Table(title="Workloads", title_justify="left")
    axis = {"c": "concur-\nrency", "r": "requests\na second", "x": "log\nspeed"}[plan.workloads[0].level_label[0]]
    for header in ("workload", "id", axis, "output"):
        table.add_column(header, no_wrap=True)
    for header in ("blocks", "requests a block", "prompts (too long)"):
        table.add_column(header)
    for cell in plan.workloads:
        blocks, prompts = plan.blocks_of(cell.id), plan.prompts[cell.dataset]
        table.add_row(
            cell.name,
            cell.id,
            f"{cell.level:g}",
            f"{cell.output_len}{'' if cell.ignore_eos else ' at most'}",
            str(len(blocks)),
            _range([len(block.requests) for block in blocks]),
            f"{prompts.num_usable} ({prompts.num_too_long})",
        )
    return table


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _command(arm: Arm) -> str:
    spec = arm.server
    if spec.launcher == "external":
        return f"measured at {spec.url}, which is to be this arm; neither started nor stopped"
    if spec.launcher == "docker":
        return recommend_commands(arm, None, "").docker_run
    arguments = serve_arguments(spec, model_path=spec.target, speculative_config=spec.speculative_config)
    return shlex.join([*(spec.command or ["vllm"]), "serve", spec.target, *arguments, *spec.extra_args])
