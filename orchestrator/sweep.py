"""A whole sweep, from a configuration to a selection and its report."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console

from orchestrator.board import Board
from orchestrator.config import SweepConfig
from orchestrator.decide import decide
from orchestrator.defects import refuse_known_defects
from orchestrator.deploy import recommend_commands
from orchestrator.errors import ConfigError, NodeUnavailable, SweepFailed
from orchestrator.ledger import Ledger, LedgerView
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.plan_text import load_prompts
from orchestrator.policies import policy_for
from orchestrator.policy import missing_blocks
from orchestrator.progress import show_progress
from orchestrator.provenance import collect_provenance
from orchestrator.record import Recorder
from orchestrator.records import FinishedVisit, SessionRecord, VisitEvent
from orchestrator.report import write_report
from orchestrator.selection import Selection
from orchestrator.sweep_dir import SweepDir, open_sweep
from tasks.host import probe_node, profile_mismatch
from tasks.model_files import pin_revisions
from tasks.server_command import engine_command
from tasks.server_http import can_bind

RECORD_DEADLINE_S = 60.0
RECORD_DEADLINE_AFTER_INTERRUPTION_S = 5.0


def check_before_start(config: SweepConfig, plan: Plan) -> None:
    """What can be known to fail before anything is made; of a cluster, that it answers and has a node (the rest the
    nodes check for themselves).

    Raises:
        ConfigError or one of its kind, with what to change.
    """
    for arm in plan.arms:
        refuse_known_defects(_engine_version(config), arm.method, config.workload.temperature)
    if config.cluster.aws is not None and config.cluster.address is None:
        raise ConfigError(
            "cluster.aws: the fleet's nodes cannot be reached from here; `orchestrator fleet sweep` with the same "
            "arguments measures there"
        )
    if config.cluster.address is not None:
        from orchestrator.cluster import ray_cluster

        with ray_cluster(config.cluster, config.hardware):
            return
    engine_command(plan.baseline.server)
    mismatch = profile_mismatch(config.hardware, probe_node())
    if mismatch:
        raise NodeUnavailable(mismatch)
    if config.server.port is not None and not can_bind(config.server.port):
        raise ConfigError(
            f"server.port={config.server.port} is in use on this machine; free it, or leave server.port null"
        )


def run_sweep(config: SweepConfig, console: Console, command: str) -> tuple[SweepDir, Selection]:
    """Measure what is missing, then decide and report.

    Raises:
        ConfigError: nothing was started.
        ClusterLost: what was measured is kept.
    """
    prompts = load_prompts(config)
    plan = plan_sweep(config, prompts)
    check_before_start(config, plan)
    with open_sweep(config, plan) as (sweep_dir, continues):
        ledger = sweep_dir.open_ledger()
        _announce(console, sweep_dir, ledger, plan, continues)
        recorder = Recorder(sweep_dir.path, config.tracking)
        recorder.kick()  # its first call imports MLflow: while the first server starts that disturbs nobody
        deadline_s = RECORD_DEADLINE_AFTER_INTERRUPTION_S
        try:
            with _fleet(config, sweep_dir, console):
                _measure(config, plan, prompts, ledger, sweep_dir, recorder, console, command)
                selection = decide_and_report(sweep_dir)
            deadline_s = RECORD_DEADLINE_S
        finally:
            unrecorded = recorder.close(deadline_s)
            if unrecorded:
                console.print(unrecorded, style="yellow")
    return sweep_dir, selection


def _fleet(config: SweepConfig, sweep_dir: SweepDir, console: Console) -> AbstractContextManager[None]:
    if config.cluster.aws is None:
        return nullcontext()
    from orchestrator.fleet_keeper import kept_fleet  # boto3 takes a second to import

    return kept_fleet(config, config.cluster.aws, sweep_dir, console)


def require_complete(sweep_dir: SweepDir) -> None:
    """Raise SweepFailed, with the reasons, where some arm has no complete figure."""
    plan, ledger = sweep_dir.plan(), sweep_dir.ledger()
    if not policy_for(sweep_dir.config()).is_complete(plan, ledger):
        raise SweepFailed(_what_is_missing(plan, ledger, sweep_dir))


def decide_and_report(sweep_dir: SweepDir) -> Selection:
    """Select from what is measured so far and write selection.json and the report."""
    config, plan, ledger = sweep_dir.config(), sweep_dir.plan(), sweep_dir.ledger()
    visits = ledger.visits()
    provenance = collect_provenance(plan.id, config.hardware, visits, ledger.set_aside)
    dropped = policy_for(config).dropped(plan, ledger)
    decided = decide(config, plan, ledger.valid_blocks(), _failures(ledger), dropped)
    engine = next((visit.engine_version for visit in reversed(visits) if visit.engine_version), None)
    selection = Selection(
        sweep_id=sweep_dir.sweep_id,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        simulated=False,
        provenance=provenance,
        objective=config.selection.objective,
        confidence=config.selection.confidence,
        workloads=decided.workloads,
        schedules=decided.schedules,
        crossovers=decided.crossovers,
        mixes=decided.mixes,
        confirmations=decided.confirmations,
        drifts=decided.drifts,
        visit_noise=decided.visit_noise,
        recommendation=recommend_commands(decided.recommended, engine, decided.reason) if decided.recommended else None,
    )
    sweep_dir.write_selection(selection)
    write_report(sweep_dir.path, selection, plan, ledger)
    return selection


def _measure(
    config: SweepConfig,
    plan: Plan,
    prompts: Mapping[str, PromptSet],
    ledger: Ledger,
    sweep_dir: SweepDir,
    recorder: Recorder,
    console: Console,
    command: str,
) -> None:
    from orchestrator.cluster import ray_cluster  # Ray takes seconds to import: only when something runs

    board = Board(plan, policy_for(config), ledger, sweep_dir)
    board.listeners.append(_kick_between_visits(recorder))
    revisions = pin_revisions([arm.server for arm in plan.arms], ledger.visits())
    cluster = ray_cluster(config.cluster, config.hardware)
    with _session(ledger, command), cluster as nodes, show_progress(board, console):
        from orchestrator.schedule import run_visits  # after ray_cluster has set what Ray reads at import

        run_visits(config, board, prompts, nodes, revisions)


@contextmanager
def _session(ledger: Ledger, command: str) -> Iterator[None]:
    started, begun = datetime.now(UTC).isoformat(), time.monotonic()
    try:
        yield
    finally:
        ledger.append(SessionRecord(started_utc=started, wall_s=time.monotonic() - begun, command=command))


def _kick_between_visits(recorder: Recorder) -> Callable[[VisitEvent], None]:
    """MLflow is written while the next server starts, never beside a measured block of the same machine."""

    def listener(event: VisitEvent) -> None:
        if isinstance(event, FinishedVisit):
            recorder.kick()

    return listener


def _announce(console: Console, sweep_dir: SweepDir, ledger: Ledger, plan: Plan, continues: bool) -> None:
    kept = len(ledger.valid_blocks())
    verb = "Continuing" if continues else "Starting"
    taken_over = f", {kept} blocks already measured" if kept else ""
    console.print(
        f"{verb} {sweep_dir.path}: {len(plan.arms)} arms x {len(plan.workloads)} workloads, "
        f"{len(plan.blocks)} blocks an arm{taken_over}",
        soft_wrap=True,
    )


def _failures(ledger: LedgerView) -> dict[str, str]:
    """Arm id -> what kept a block of it from counting: the last failed visit, else the last void block."""
    void = {block.arm_id: f"void: {block.void_reason}" for block in ledger.void_blocks()}
    return void | {visit.arm_id: visit.error for visit in ledger.visits() if visit.error}


def _what_is_missing(plan: Plan, ledger: LedgerView, sweep_dir: SweepDir) -> str:
    failures = _failures(ledger)
    reasons = [
        f"{arm.name}: {failures[arm.id]}"
        for arm in plan.arms
        if arm.id in failures and (arm.is_baseline or missing_blocks(plan, ledger, arm, "arm", ""))
    ]
    reasons += [f"node {node} is set aside: {why}" for node, why in ledger.set_aside.items()]
    return (
        f"not everything could be measured. {'; '.join(reasons) or 'no node was left'}. "
        f"What was measured is in {sweep_dir.path}; the same command tries the rest again"
    )


def _engine_version(config: SweepConfig) -> str | None:
    """Of the engine in this environment; None where another one will serve, which then reports its own."""
    if config.server.command is not None or config.cluster.address is not None:
        return None
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None
