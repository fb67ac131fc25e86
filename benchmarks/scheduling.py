"""What the driver spends on a visit: many simulated ones over many simulated nodes, by the real Tune, board and ledger.

    python -m benchmarks.scheduling [--visits 1000] [--nodes 100] [--workers 4]

The nodes are names for slots of one local Ray. `--workers` of them run at a time and the others' visits wait for one: a
hundred worker processes would only fight for this machine's cores. Each visit hands over its blocks at once without
starting any server, and what is counted is the driver's own CPU time (Tune, policy, ledger with its fsyncs, raw files)
and its largest resident set. The workers' time is Ray's to pay and not counted.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from orchestrator.board import Board
from orchestrator.config import Dataset, Drafter, Hardware, Model, Search, Speculation, SweepConfig, Workload
from orchestrator.ids import text_sha256
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.policies import policy_for
from orchestrator.records import (
    BlockRecord,
    FinishedVisit,
    MeasuredBlock,
    Message,
    Prompt,
    RequestRecord,
    Visit,
    VisitEvent,
    VisitRecord,
)
from orchestrator.schedule import VisitTrial, run_visits
from orchestrator.search import Drive
from orchestrator.sweep_dir import open_sweep

NUM_BLOCKS = 3
PROMPTS_PER_BLOCK = 8
OUTPUT_LEN = 128
OBJECT_STORE_BYTES = 512 * 1024 * 1024
STARTED_UTC = "2026-01-01T00:00:00+00:00"


class SimulatedTrial(VisitTrial):
    """A visit whose blocks are there at once."""

    def _start(self, config: dict[str, str]) -> Iterator[VisitEvent]:
        visit = Visit.model_validate_json(config["visit"])
        _, plan, _ = self._sweeps[config["sweep"]]
        return _events(visit, plan)


def _events(visit: Visit, plan: Plan) -> Iterator[VisitEvent]:
    by_id = {block.id: block for block in plan.blocks}
    requests = tuple(
        RequestRecord(prompt_index=index, sent_s=0.0, end_s=1.0, output_tokens=OUTPUT_LEN)
        for index in range(PROMPTS_PER_BLOCK)
    )
    for block_id in visit.block_ids:
        yield MeasuredBlock(record=_block(visit, by_id[block_id].workload_id, block_id), requests=requests)
    record = VisitRecord(
        visit_id=visit.id,
        arm_id=visit.arm.id,
        attempt=visit.attempt,
        phase=visit.phase,
        node=visit.node,
        started_utc=STARTED_UTC,
        blocks_s=1.0,
        wall_s=2.0,
        num_blocks=len(visit.block_ids),
    )
    yield FinishedVisit(record=record, server_log="")


def _block(visit: Visit, workload_id: str, block_id: str) -> BlockRecord:
    return BlockRecord(
        arm_id=visit.arm.id,
        block_id=block_id,
        workload_id=workload_id,
        block_index=0,
        visit_id=visit.id,
        attempt=visit.attempt,
        phase=visit.phase,
        node=visit.node,
        started_utc=STARTED_UTC,
        wall_s=1.0 + 0.001 * (hash(block_id) % 7),
        num_requests=PROMPTS_PER_BLOCK,
        prompt_tokens=PROMPTS_PER_BLOCK * 60,
        output_tokens=PROMPTS_PER_BLOCK * OUTPUT_LEN,
        counters=None,
        ttft_s=(0.1,) * PROMPTS_PER_BLOCK,
        tpot_s=(0.01,) * PROMPTS_PER_BLOCK,
        e2e_s=(1.0,) * PROMPTS_PER_BLOCK,
        itl_s={},
        output_sha256=(text_sha256(block_id),) * PROMPTS_PER_BLOCK,
        client_cpu_cores=0.1,
    )


def _config(num_arms: int, results: Path) -> SweepConfig:
    return SweepConfig(
        name="scheduling",
        results_dir=str(results),
        hardware=Hardware(name="simulated", node_tolerance=None),
        model=Model(
            name="m", target="/m", max_model_len=1024, drafters={"dflash": Drafter(model="/d", block_size=100_000)}
        ),
        datasets={"code": Dataset(data_files="code.jsonl")},
        speculation=(Speculation(method="dflash", num_speculative_tokens=tuple(range(1, num_arms + 1))),),
        workload=Workload(max_concurrency=(1,), num_blocks=NUM_BLOCKS, prompts_per_block=PROMPTS_PER_BLOCK),
        search=Search(strategy="grid", confirm=False),
    )


def _prompts() -> dict[str, PromptSet]:
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"{i}"),)) for i in range(64))
    return {"code": PromptSet(prompts=prompts, num_read=len(prompts), num_too_long=0)}


def _connect(num_workers: int, hardware: Hardware) -> str:
    """One local Ray with that many slots; its node id."""
    ray.init(
        address="local",
        num_cpus=num_workers + 1,
        resources={hardware.node_resource: num_workers},
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    return str(ray.nodes()[0]["NodeID"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specsweep-scheduling-") as folder:
        _measure(options, Path(folder))


def _measure(options: Any, folder: Path) -> None:
    """Every node opens and closes with the baseline: the rest of the visits are arms."""
    num_arms = options.visits - 2 * options.nodes
    config, prompts = _config(num_arms, folder), _prompts()
    plan = plan_sweep(config, prompts)
    node_id = _connect(options.workers, config.hardware)
    names = {f"node-{number:03}": node_id for number in range(options.nodes)}
    with open_sweep(config, plan) as (sweep_dir, _):
        ledger = sweep_dir.open_ledger()
        board = Board(plan, policy_for(config), ledger, sweep_dir)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun, begun_cpu = time.monotonic(), time.process_time()
        run_visits([Drive(config, board, {})], prompts, lambda hardware: names, SimulatedTrial)
        wall_s, cpu_s = time.monotonic() - begun, time.process_time() - begun_cpu
        num_visits, num_blocks = len(ledger.visits()), len(ledger.valid_blocks())
    ray.shutdown()
    after_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Console(soft_wrap=True, highlight=False).print(
        f"{num_visits} visits over {options.nodes} nodes, {num_blocks} blocks: "
        f"{1000 * cpu_s / num_visits:.1f} ms of the driver's CPU time a visit; "
        f"{wall_s:.0f} s of wall time; resident {before_kb / 1024:.0f} MB before, "
        f"{after_kb / 1024:.0f} MB at most"
    )


if __name__ == "__main__":
    main()
