"""A small sweep of one workload or a few, and measured blocks of it with a chosen throughput."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from orchestrator.compare import Comparisons, compare_cells
from orchestrator.config import (
    Dataset,
    Drafter,
    Hardware,
    Model,
    SelectionRules,
    Speculation,
    SweepConfig,
    Workload,
)
from orchestrator.ledger import Ledger
from orchestrator.measured import fold
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.records import (
    Arm,
    Block,
    BlockRecord,
    FinishedVisit,
    MeasuredBlock,
    Message,
    Phase,
    Prompt,
    RequestRecord,
    Visit,
    VisitRecord,
)

OUTPUT_TOKENS = 1000
NUM_PROMPTS = 2
"""In a block."""
STARTED_UTC: Mapping[Phase, str] = {
    "opening": "2026-08-01T10:00:00Z",
    "arm": "2026-08-01T10:30:00Z",
    "confirm": "2026-08-01T10:45:00Z",
    "closing": "2026-08-01T11:00:00Z",
}
"""Arms are measured midway between the baseline's two visits."""
QUIET = SelectionRules(visit_noise=0)
"""Rules that suppose no noise between server starts, so that equal blocks leave nothing open."""


def make_config(
    grid: Sequence[int] = (1, 3, 7),
    *,
    concurrencies: Sequence[int] = (1,),
    num_blocks: int = 4,
    datasets: Sequence[str] = ("code",),
    results_dir: str | Path = "results",
    seed: int = 0,
    temperature: float = 0.0,
) -> SweepConfig:
    return SweepConfig(
        name="small",
        seed=seed,
        results_dir=str(results_dir),
        hardware=Hardware(name="local"),
        model=Model(
            name="m",
            target="org/target",
            max_model_len=1024,
            drafters={"dflash": Drafter(model="org/drafter", block_size=16)},
        ),
        datasets={name: Dataset(data_files=f"{name}.jsonl") for name in datasets},
        speculation=Speculation(method="dflash" if grid else "none", num_speculative_tokens=tuple(grid)),
        workload=Workload(
            max_concurrency=tuple(concurrencies),
            num_blocks=num_blocks,
            prompts_per_block=NUM_PROMPTS,
            temperature=temperature,
        ),
    )


def plan_of(config: SweepConfig) -> Plan:
    return plan_sweep(config, {name: _prompts(name) for name in config.datasets})


def make_plan(
    grid: Sequence[int] = (1, 3, 7),
    *,
    concurrencies: Sequence[int] = (1,),
    num_blocks: int = 4,
    datasets: Sequence[str] = ("code",),
    temperature: float = 0.0,
) -> Plan:
    return plan_of(
        make_config(
            grid, concurrencies=concurrencies, num_blocks=num_blocks, datasets=datasets, temperature=temperature
        )
    )


def block_record(
    plan: Plan,
    arm: Arm,
    block: Block,
    tokens_per_s: float = 100.0,
    *,
    phase: Phase | None = None,
    node: str = "a",
    **changes: object,
) -> BlockRecord:
    """A valid block; the baseline's is an opening one unless `phase` says otherwise."""
    phase = phase or ("opening" if arm.is_baseline else "arm")
    return BlockRecord(
        arm_id=arm.id,
        block_id=block.id,
        workload_id=block.workload_id,
        block_index=block.index,
        visit_id=f"{arm.name}-{phase}-{node}",
        attempt=1,
        phase=phase,
        node=node,
        started_utc=STARTED_UTC[phase],
        wall_s=OUTPUT_TOKENS / tokens_per_s,
        num_requests=len(block.prompt_indices),
        prompt_tokens=100,
        output_tokens=OUTPUT_TOKENS,
        counters=None,
        ttft_s=(0.1, 0.2),
        tpot_s=(0.01, 0.02),
        e2e_s=(1.0, 2.0),
        itl_s={},
        output_sha256=("x", "y"),
        client_cpu_cores=0.1,
    ).model_copy(update=changes)


def compare(plan: Plan, blocks: Iterable[BlockRecord], rules: SelectionRules = QUIET) -> Comparisons:
    """What selecting starts from."""
    return compare_cells(plan, fold(blocks, rules).cells, rules)


def measured(
    plan: Plan, tokens_per_s: Mapping[int, Sequence[float]], *, phase: Phase | None = None, node: str = "a"
) -> list[BlockRecord]:
    """Blocks of the first workload: k (0 is the baseline) -> tokens/s of its blocks in their order."""
    blocks = plan.blocks_of(plan.workloads[0].id)
    return [
        block_record(plan, arm, block, rate, phase=phase, node=node)
        for arm in plan.arms
        for block, rate in zip(blocks, tokens_per_s.get(arm.num_speculative_tokens, ()), strict=False)
    ]


def answers(plan: Plan, visit: Visit) -> list[MeasuredBlock | FinishedVisit]:
    """All that the node sends back of a visit that goes well."""
    by_id = {block.id: block for block in plan.blocks}
    sent: list[MeasuredBlock | FinishedVisit] = [answer(plan, visit, by_id[block_id]) for block_id in visit.block_ids]
    return [*sent, finished(visit)]


def answer(plan: Plan, visit: Visit, block: Block, **changes: object) -> MeasuredBlock:
    fields = {"visit_id": visit.id, "attempt": visit.attempt, **changes}
    record = block_record(plan, visit.arm, block, phase=visit.phase, node=visit.node, **fields)  # type: ignore[arg-type]
    requests = tuple(RequestRecord(prompt_index=index, sent_s=0.0, end_s=1.0) for index in block.prompt_indices)
    return MeasuredBlock(record=record, requests=requests)


def finished(visit: Visit, error: str | None = None, server_log: str = "") -> FinishedVisit:
    record = VisitRecord(
        visit_id=visit.id,
        arm_id=visit.arm.id,
        attempt=visit.attempt,
        phase=visit.phase,
        node=visit.node,
        started_utc="2026-08-01T10:00:00Z",
        wall_s=30.0,
        num_blocks=len(visit.block_ids),
        error=error,
        server_log=f"{visit.id}.log" if server_log else None,
    )
    return FinishedVisit(record=record, server_log=server_log)


def write_all(ledger: Ledger, plan: Plan, *, node: str = "a") -> None:
    """Measure the whole plan on one node."""
    for arm in plan.arms:
        phases: tuple[Phase, ...] = ("opening", "closing") if arm.is_baseline else ("arm",)
        for phase in phases:
            for block in plan.blocks:
                ledger.append(block_record(plan, arm, block, phase=phase, node=node))


def _prompts(name: str) -> PromptSet:
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"{name} {index}"),)) for index in range(1500))
    return PromptSet(prompts=prompts, num_read=len(prompts), num_too_long=0)


def visit_of(arm: Arm, node: str = "a", **changes: object) -> VisitRecord:
    """A visit's own record, without blocks."""
    record = VisitRecord(
        visit_id=f"{arm.id}-{node}",
        arm_id=arm.id,
        attempt=1,
        phase="arm",
        node=node,
        started_utc="",
        wall_s=1,
        num_blocks=0,
    )
    return record.model_copy(update=changes)
