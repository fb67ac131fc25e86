"""Single visits, without Ray: a task of a small plan, and what running it gives."""

from typing import Any

from orchestrator.config import Hardware, Server
from orchestrator.plan import Plan
from orchestrator.records import BlockRecord, Message, Prompt, ServerSpec, Visit, VisitRecord, VisitTask
from tasks.visit import run_visit

PROMPTS = {"code": tuple(Prompt(messages=(Message(role="user", content=f"code {i}"),)) for i in range(1500))}
HARDWARE = Hardware(name="local", max_other_cpu_share=None)
"""The tests' own processes run here too."""


def visit_task(
    plan: Plan,
    server: ServerSpec,
    *,
    k: int = 7,
    node: str = "a",
    num_blocks: int = 1,
    hardware: Hardware = HARDWARE,
    **more: Any,
) -> VisitTask:
    """The first blocks of `plan` for its only arm (0: the baseline), served as `server` says."""
    arm = plan.arms[1] if k else plan.baseline
    blocks = plan.blocks[:num_blocks]
    visit = Visit(
        id="v",
        arm=arm.model_copy(update={"server": server}),
        phase="arm" if k else "opening",
        node=node,
        attempt=1,
        block_ids=tuple(block.id for block in blocks),
    )
    return VisitTask(
        visit=visit,
        hardware=hardware,
        server=Server(stop_grace_s=1),
        workloads={cell.id: cell for cell in plan.workloads},
        blocks=blocks,
        **more,
    )


def run(task: VisitTask) -> tuple[list[BlockRecord], VisitRecord]:
    """Its blocks and its end."""
    *measured, finished = [event.record for event in run_visit(task, PROMPTS)]
    assert isinstance(finished, VisitRecord)
    return [record for record in measured if isinstance(record, BlockRecord)], finished
