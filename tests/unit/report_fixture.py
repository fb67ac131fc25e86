"""A made-up but plausible sweep to print: three datasets, two concurrencies, one undecided, some of it gone wrong."""

from collections.abc import Sequence
from pathlib import Path

from orchestrator.config import Dataset, Drafter, Hardware, Model, Speculation, SweepConfig, Workload
from orchestrator.ledger import Ledger
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.recommend import crossovers
from orchestrator.records import (
    Arm,
    Block,
    BlockRecord,
    LedgerRecord,
    Message,
    NodeInfo,
    Phase,
    Prompt,
    SessionRecord,
    VisitRecord,
)
from orchestrator.selection import (
    ArmResult,
    Choice,
    Confirmation,
    Drift,
    Interval,
    Mix,
    MixedArm,
    Provenance,
    Quantiles,
    Recommendation,
    Schedule,
    Selection,
    Verdict,
    WorkloadResult,
)

GRID = (1, 3, 7, 15)
ACCEPTED = {"code": 0.91, "math": 0.74, "chat": 0.4}
"""Chance that a drafted token is accepted, per dataset."""
GAIN = Interval(mean=2.4, ci_low=2.3, ci_high=2.5)
NODE = NodeInfo(
    hostname="node-a",
    cpu_model="Intel Xeon 6975P-C",
    physical_cores=32,
    logical_cores=64,
    numa_nodes=1,
    memory_gb=512,
    isa=("amx_bf16", "avx512f"),
    governor="performance",
    load_average_1m=0.2,
    transparent_hugepage="madvise",
    kernel="6.8",
)


def make_plan(grid: Sequence[int] = GRID, concurrencies: Sequence[int] = (1, 4)) -> Plan:
    config = SweepConfig(
        name="demo",
        hardware=Hardware(name="r8i_16xlarge"),
        model=Model(
            name="demo", target="demo://target", drafters={"dflash": Drafter(model="demo://d")}, max_model_len=1024
        ),
        datasets={name: Dataset(data_files=f"{name}.jsonl") for name in ACCEPTED},
        speculation=Speculation(method="dflash", num_speculative_tokens=tuple(grid)),
        workload=Workload(max_concurrency=tuple(concurrencies)),
    )
    return plan_sweep(config, {name: _prompts(name) for name in ACCEPTED})


def make_selection(plan: Plan) -> Selection:
    workloads = tuple(
        make_workload(cell.dataset, int(cell.level), [arm.num_speculative_tokens for arm in plan.arms])
        for cell in plan.workloads
    )
    return Selection(
        sweep_id="demo-20260801T101500Z",
        created_utc="2026-08-01T10:21:40Z",
        simulated=False,
        provenance=Provenance(
            git_commit="544ae03d1f",
            versions={"python": "3.11.7", "vllm": "0.32.0+cpu", "torch": "2.13.0+cpu"},
            hardware={"name": "r8i_16xlarge", "physical_cores": 32, "isa": ["amx_bf16"], "usd_per_hour": None},
            plan_id=plan.id,
        ),
        workloads=workloads,
        schedules=(Schedule(dataset="code", num_speculative_tokens_per_batch_size=((1, 2, 15), (3, 64, 7))),),
        mixes=tuple(
            Mix(
                dataset=dataset,
                traffic={1: 0.75, 4: 0.25},
                verdict="speculate",
                best=Choice(arm="dflash-k7", method="dflash", num_speculative_tokens=7),
                arms=tuple(
                    MixedArm(
                        arm=arm.name, method="dflash", num_speculative_tokens=arm.num_speculative_tokens, gain=GAIN
                    )
                    for arm in plan.arms[1:]
                ),
            )
            for dataset in (*ACCEPTED, None)
        ),
        confirmations=(
            Confirmation(
                setting="static",
                arm="dflash-k7",
                speculative_config={"method": "dflash", "model": "demo://d", "num_speculative_tokens": 7},
                predicted=GAIN,
                confirmed=Interval(mean=2.31, ci_low=2.2, ci_high=2.43),
                verdict="holds",
                reason="measured again at the mix: 2.31x [2.20, 2.43]",
            ),
        ),
        crossovers=crossovers(workloads),
        drifts=(
            Drift(
                dataset="code",
                max_concurrency=1,
                node="node-a",
                num_blocks=4,
                closing_over_opening=Interval(mean=0.968, ci_low=0.948, ci_high=0.988),
                is_beyond_noise=True,
            ),
        ),
        visit_noise=0.015,
        recommendation=Recommendation(
            arm="dflash-k7",
            speculative_config={"method": "dflash", "model": "demo://d", "num_speculative_tokens": 7},
            vllm_serve="vllm serve demo://target --dtype bfloat16 --max-model-len 1024 \\\n"
            '  --speculative-config \'{"method": "dflash", "model": "demo://d", "num_speculative_tokens": 7}\'',
            docker_run="docker run --rm --security-opt seccomp=unconfined --cap-add SYS_NICE --ipc=host \\\n"
            "  -e VLLM_CPU_KVCACHE_SPACE=40 -v ~/.cache/huggingface:/root/.cache/huggingface \\\n"
            "  -p 8000:8000 vllm/vllm-openai-cpu:v0.32.0 demo://target --dtype bfloat16",
            reason="measured again at the mix: 2.31x [2.20, 2.43]",
        ),
    )


def make_workload(dataset: str, concurrency: int, grid: Sequence[int]) -> WorkloadResult:
    arms = tuple(_arm_result(dataset, concurrency, k) for k in grid)
    best = max(arms, key=lambda arm: arm.output_tokens_per_s.mean if arm.output_tokens_per_s else 0)
    verdict: Verdict = "baseline" if best.method == "none" else "speculate"
    reason = f"{best.method} k={best.num_speculative_tokens} has the highest throughput in all 4 blocks"
    if (dataset, concurrency) == ("math", 4):
        verdict, reason = "undecided", "the interval of k=3, 0.96 to 1.21, includes 1: 4 blocks are too noisy to tell"
    return WorkloadResult(
        dataset=dataset,
        max_concurrency=concurrency,
        output_len=128,
        verdict=verdict,
        reason=reason,
        best=None
        if verdict == "undecided"
        else Choice(arm=best.arm, method=best.method, num_speculative_tokens=best.num_speculative_tokens),
        arms=arms,
    )


def make_ledger(plan: Plan, path: Path) -> Ledger:
    """Opening and closing baseline, every arm, one void block, one visit that failed at start."""
    records: list[LedgerRecord] = []
    for phase, arm in [
        ("opening", plan.baseline),
        *(("arm", arm) for arm in plan.arms[1:]),
        ("closing", plan.baseline),
    ]:
        blocks = [_block(plan, arm, phase, block) for block in plan.blocks]  # type: ignore[arg-type]
        records += [*blocks, _visit(arm, phase, len(blocks), sum(block.wall_s for block in blocks))]  # type: ignore[arg-type]
    void = _block(plan, plan.arms[2], "arm", plan.blocks[0])
    records.append(void.model_copy(update={"void_reason": "1 of 8 requests failed: HTTP 500", "attempt": 2}))
    failed = _visit(plan.arms[4], "arm", 0, 0.0)
    error = "dflash-k15: vLLM exited 1 (drafter 'x' not found)"
    records.append(failed.model_copy(update={"error": error, "server_log": "dflash-k15-1.log", "attempt": 2}))
    visits = [record for record in records if isinstance(record, VisitRecord)]
    wall_s = sum(visit.wall_s for visit in visits) + 12
    records.append(SessionRecord(started_utc="2026-08-01T10:15:00Z", wall_s=wall_s, command="make sweep"))
    path.write_text("".join(record.model_dump_json() + "\n" for record in records))
    return Ledger(path)


def make_block(plan: Plan, **changes: object) -> BlockRecord:
    return _block(plan, plan.baseline, "opening", plan.blocks[0]).model_copy(update=changes)


def make_visit(plan: Plan, **changes: object) -> VisitRecord:
    return _visit(plan.baseline, "opening", 1, 10.0).model_copy(update=changes)


def _prompts(name: str) -> PromptSet:
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"{name} {index}"),)) for index in range(40))
    return PromptSet(prompts=prompts, num_read=43, num_too_long=3)


def name_of(k: int) -> str:
    """As the plan names its arms."""
    return f"dflash-k{k}" if k else "none"


def _arm_result(dataset: str, concurrency: int, k: int) -> ArmResult:
    chance = ACCEPTED[dataset]
    survival = tuple(chance ** (position + 1) for position in range(min(k, 200)))
    length = 1 + sum(survival)
    speedup = length / (1 + 0.22 + 0.02 * k * concurrency) if k else 1.0
    rate = 41.3 * concurrency**0.8 * speedup
    return ArmResult(
        arm=name_of(k),
        method="dflash" if k else "none",
        num_speculative_tokens=k,
        num_blocks=4,
        num_requests=32,
        output_tokens_per_s=Interval(mean=rate, ci_low=rate * 0.96, ci_high=rate * 1.05),
        speedup=Interval(mean=speedup, ci_low=speedup * 0.95, ci_high=speedup * 1.05) if k else None,
        acceptance_length=length if k else None,
        acceptance_rate=(length - 1) / k if k else None,
        survival=survival if k else None,
        ttft_s=Quantiles(p50=0.0821, p95=0.1234),
        tpot_s=Quantiles(p50=1 / rate, p95=1.4 / rate),
        usd_per_million_output_tokens=None,
        outputs_match_baseline=0.969 if k else None,
    )


def _block(plan: Plan, arm: Arm, phase: Phase, block: Block) -> BlockRecord:
    cell = next(cell for cell in plan.workloads if cell.id == block.workload_id)
    return BlockRecord(
        arm_id=arm.id,
        block_id=block.id,
        workload_id=cell.id,
        block_index=block.index,
        visit_id=f"{arm.name}-{phase}",
        attempt=1,
        phase=phase,
        node="node-a",
        started_utc="2026-08-01T10:15:00Z",
        wall_s=3.0 if phase == "opening" else 3.1,
        num_requests=8,
        prompt_tokens=800,
        output_tokens=1024,
        counters=None,
        ttft_s=(0.08,) * 8,
        tpot_s=(0.02,) * 8,
        e2e_s=(2.6,) * 8,
        itl_s={},
        output_sha256=("0",) * 8,
        client_cpu_cores=0.05,
    )


def _visit(arm: Arm, phase: Phase, num_blocks: int, blocks_s: float) -> VisitRecord:
    return VisitRecord(
        visit_id=f"{arm.name}-{phase}",
        arm_id=arm.id,
        attempt=1,
        phase=phase,
        node="node-a",
        started_utc="2026-08-01T10:15:00Z",
        server_start_s=21.0,
        warmup_s=1.5,
        blocks_s=blocks_s,
        server_stop_s=0.8,
        wall_s=21.0 + 1.5 + blocks_s + 0.8 + 0.4,
        num_blocks=num_blocks,
        engine_version="0.32.0",
        node_info=NODE,
    )
