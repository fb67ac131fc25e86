"""A whole sweep, from a configuration to a selection and its report."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil

from rich.console import Console

from orchestrator.board import Board
from orchestrator.caveats import caveats
from orchestrator.cluster_budget import over_budget
from orchestrator.config import SweepConfig
from orchestrator.decide import Decided, decide
from orchestrator.deploy import recommend_commands
from orchestrator.errors import ConfigError, EngineNotFound, NodeUnavailable, SweepFailed
from orchestrator.inputs import load_prompts, memory_here
from orchestrator.ledger import Ledger, LedgerView
from orchestrator.measured_server import measured_servers
from orchestrator.memory import require_fit
from orchestrator.outcome import failures, what_is_missing
from orchestrator.past_sweeps import foresee, foresee_times
from orchestrator.plan import Plan, PromptSet, plan_sweep
from orchestrator.policies import policy_for
from orchestrator.policy import gone_nodes, unclosed_nodes
from orchestrator.progress import show_progress
from orchestrator.provenance import collect_provenance
from orchestrator.recorder import Recorder
from orchestrator.records import FinishedVisit, MeasuredWith, ServerSpec, SessionRecord, Visit, VisitEvent, VisitRecord
from orchestrator.report import write_report
from orchestrator.selection import Recommendation, Selection, Unfinished
from orchestrator.sweep_dir import SweepDir, open_sweep
from orchestrator.unfinished import find_unfinished
from orchestrator.unused_confirmation import unused_confirmations
from tasks.engine_build import installed_engine
from tasks.host import probe_node, profile_mismatch
from tasks.model_files import local_contents, pin_revisions
from tasks.preflight import refuse_plan
from tasks.server_command import engine_command
from tasks.server_http import ask, can_bind

CONNECT_TIMEOUT_S = 5.0
RECORD_DEADLINE_S = 60.0
RECORD_DEADLINE_AFTER_INTERRUPTION_S = 5.0


def check_before_start(configs: Sequence[SweepConfig], plans: Sequence[Plan]) -> list[int]:
    """What can be known to fail before anything is made; of a cluster, that it answers and has a node (the rest the
    nodes check for themselves). Returns how many nodes each has.

    Raises:
        ConfigError or one of its kind, with what to change.
    """
    config = configs[0]
    for each, plan in zip(configs, plans, strict=True):
        refuse_plan(each, plan)
    if config.cluster.aws is not None and config.cluster.address is None:
        raise ConfigError(
            "cluster.aws: the fleet's nodes cannot be reached from here; `orchestrator fleet sweep` with the same "
            "arguments measures there"
        )
    if config.cluster.address is not None or len(configs) > 1:
        from orchestrator.cluster import ray_cluster

        with ray_cluster(config.cluster, [each.hardware for each in configs]) as live:
            slots = [(len(live(each.hardware)), each.hardware.servers_per_node) for each in configs]
            return [max(1, ceil(number / per_node)) for number, per_node in slots]
    _require_engine(plans[0].baseline.server)
    mismatch = profile_mismatch(config.hardware, probe_node())
    if mismatch:
        raise NodeUnavailable(mismatch)
    if config.server.port is not None and not can_bind(config.server.port):
        raise ConfigError(
            f"server.port={config.server.port} is in use on this machine; free it, or leave server.port null"
        )
    return [1]


def _check_budget(
    configs: Sequence[SweepConfig],
    plans: Sequence[Plan],
    prompts: Mapping[str, PromptSet],
    num_nodes: Sequence[int],
    console: Console,
) -> None:
    """A budget, which all hardware shares, is only kept by an estimate: without one nothing is started."""
    if configs[0].cluster.budget_usd is None:
        return
    expected = [foresee(config, plan, prompts) for config, plan in zip(configs, plans, strict=True)]
    warning = over_budget(configs[0].cluster, list(zip(expected, num_nodes, strict=True)))
    if warning:
        console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _require_engine(spec: ServerSpec) -> None:
    if spec.launcher != "external":
        engine_command(spec)
        return
    answer = ask(f"{spec.url}/health", api_key="", timeout_s=CONNECT_TIMEOUT_S)
    if answer.status == 0:
        raise EngineNotFound(f"server.url={spec.url}: nothing answers there ({answer.body}); start the server first")


@dataclass(frozen=True)
class _Open:
    """A sweep that this process holds the lock of."""

    config: SweepConfig
    plan: Plan
    sweep_dir: SweepDir
    ledger: Ledger
    recorder: Recorder


def run_sweeps(configs: Sequence[SweepConfig], console: Console, command: str) -> list[tuple[SweepDir, Selection]]:
    """Measure what is missing, then decide and report; several sweeps at the same time, each on its own hardware.

    Args:
        configs: the same but for name and hardware.

    Raises:
        ConfigError: nothing was started.
        ClusterLost: what was measured is kept.
    """
    for config in configs:
        require_fit(config, memory_here(config))
    prompts = load_prompts(configs[0])
    plans = [plan_sweep(config, prompts) for config in configs]
    _check_budget(configs, plans, prompts, check_before_start(configs, plans), console)
    with ExitStack() as stack:
        sweeps = [
            _open(config, plan, console, command, *stack.enter_context(open_sweep(config, plan, _here(config, plan))))
            for config, plan in zip(configs, plans, strict=True)
        ]
        deadline_s = RECORD_DEADLINE_AFTER_INTERRUPTION_S
        try:
            with ExitStack() as fleets:
                for sweep in sweeps:
                    fleets.enter_context(_fleet(sweep.config, sweep.sweep_dir, console))
                _measure(sweeps, prompts, console, command)
                finished = [(sweep.sweep_dir, decide_and_report(sweep.sweep_dir)) for sweep in sweeps]
            deadline_s = RECORD_DEADLINE_S
        finally:
            for unrecorded in [sweep.recorder.close(deadline_s) for sweep in sweeps]:
                if unrecorded:
                    console.print(unrecorded, style="yellow")
    return finished


def _here(config: SweepConfig, plan: Plan) -> MeasuredWith:
    """What this machine measures with, where it is the one that measures; any other node is asked when it does."""
    if not config.cluster.is_this_machine:
        return MeasuredWith()
    server = plan.baseline.server
    engine = installed_engine(server.command) if server.launcher == "process" else None
    served = [arm.server for arm in plan.arms if server.launcher != "external"]
    return MeasuredWith(
        engine_version=engine.version if engine else None,
        local_models=local_contents(served),
    )


def _open(
    config: SweepConfig, plan: Plan, console: Console, command: str, sweep_dir: SweepDir, continues: bool
) -> _Open:
    sweep_dir.write_command(command)
    ledger = sweep_dir.open_ledger()
    _announce(console, sweep_dir, ledger, plan, continues)
    recorder = Recorder(sweep_dir.path, config.tracking)
    recorder.kick()  # its first call imports MLflow: while the first server starts that disturbs nobody
    return _Open(config, plan, sweep_dir, ledger, recorder)


def _fleet(config: SweepConfig, sweep_dir: SweepDir, console: Console) -> AbstractContextManager[None]:
    if config.cluster.aws is None:
        return nullcontext()
    from orchestrator.fleet_keeper import kept_fleet  # boto3 takes a second to import

    return kept_fleet(config, config.cluster.aws, sweep_dir, console)


def require_complete(sweep_dirs: Sequence[SweepDir]) -> None:
    """Raise SweepFailed, with the reasons, where some arm has no complete figure."""
    missing = []
    for sweep_dir in sweep_dirs:
        plan, ledger = sweep_dir.plan(), sweep_dir.ledger()
        if not policy_for(sweep_dir.config()).is_complete(plan, ledger):
            missing.append(what_is_missing(plan, ledger, sweep_dir.path))
    if missing:
        raise SweepFailed("\n".join(missing))


def decide_and_report(sweep_dir: SweepDir) -> Selection:
    """Select from what is measured so far and write selection.json and the report."""
    config, plan, ledger = sweep_dir.config(), sweep_dir.plan(), sweep_dir.ledger()
    visits = ledger.visits()
    provenance = collect_provenance(plan.id, config.hardware, visits, ledger.set_aside, _unclosed(ledger))
    dropped = policy_for(config).dropped(plan, ledger)
    decided = decide(config, plan, ledger.valid_blocks(), failures(ledger), dropped)
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
        unused_confirmations=unused_confirmations(
            config, plan, ledger.valid_blocks(), visits, {setting.arm.id for setting in decided.settings}
        ),
        drifts=decided.drifts,
        visit_noise=decided.visit_noise,
        unfinished=unfinished_now(sweep_dir, ledger),
        warnings=caveats(config, plan, ledger),
        recommendation=_recommendation(decided, plan, visits),
    )
    sweep_dir.write_selection(selection)
    write_report(sweep_dir.path, selection, plan, ledger, config.model)
    return selection


def unfinished_now(sweep_dir: SweepDir, ledger: LedgerView | None = None) -> Unfinished | None:
    """What a sweep has not measured, by `ledger` (None: its own as it is now); None for a finished one."""
    ledger = ledger or sweep_dir.ledger()
    typed = [session.command for session in ledger.sessions() if session.command]
    command = sweep_dir.command() or (typed[-1] if typed else None)
    return find_unfinished(sweep_dir.config(), sweep_dir.plan(), ledger, command)


def _recommendation(decided: Decided, plan: Plan, visits: Sequence[VisitRecord]) -> Recommendation | None:
    arm = decided.recommended
    return recommend_commands(measured_servers(arm, plan.arms, visits), decided.reason) if arm else None


def _measure(sweeps: Sequence[_Open], prompts: Mapping[str, PromptSet], console: Console, command: str) -> None:
    from orchestrator.cluster import ray_cluster  # Ray takes seconds to import: only when something runs

    boards = [Board(each.plan, policy_for(each.config), each.ledger, each.sweep_dir) for each in sweeps]
    kinds = [each.config.hardware for each in sweeps]
    revisions = _pin_revisions(sweeps)
    with ExitStack() as stack:
        for sweep, board in zip(sweeps, boards, strict=True):
            board.listeners.append(_kick_between_visits(sweep.recorder))
            stack.enter_context(_session(board, command))
        nodes = stack.enter_context(ray_cluster(sweeps[0].config.cluster, kinds))
        stack.enter_context(
            show_progress(
                [
                    (each.config, board, foresee_times(each.config, each.plan, prompts))
                    for each, board in zip(sweeps, boards, strict=True)
                ],
                console,
            )
        )
        from orchestrator.schedule import run_visits  # after ray_cluster has set what Ray reads at import
        from orchestrator.search import Drive

        drives = [
            Drive(sweep.config, board, pinned) for sweep, board, pinned in zip(sweeps, boards, revisions, strict=True)
        ]
        run_visits(drives, prompts, nodes)


def _pin_revisions(sweeps: Sequence[_Open]) -> list[dict[str, str]]:
    """Of each sweep: what it has served before, else what another one of them has."""
    visits = [visit for sweep in sweeps for visit in sweep.ledger.visits()]
    return [
        pin_revisions([arm.server for arm in sweep.plan.arms], [*visits, *sweep.ledger.visits()]) for sweep in sweeps
    ]


@contextmanager
def _session(board: Board, command: str) -> Iterator[None]:
    begun, record = (
        time.monotonic(),
        SessionRecord(started_utc=datetime.now(UTC).isoformat(), wall_s=0, command=command),
    )
    try:
        yield
        # An interrupted session says nothing about who will be there at the end.
        record = record.model_copy(update={"nodes_gone": tuple(board.gone()), "ended": "measured"})
    except KeyboardInterrupt:
        record = record.model_copy(update={"ended": "interrupted"})
        raise
    except Exception as error:
        record = record.model_copy(update={"ended": "failed", "error": str(error)})
        raise
    finally:
        board.ledger.append(record.model_copy(update={"wall_s": time.monotonic() - begun}))


def _kick_between_visits(recorder: Recorder) -> Callable[[Visit | VisitEvent], None]:
    """MLflow is written while the next server starts, never beside a measured block of the same machine."""

    def listener(event: Visit | VisitEvent) -> None:
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


def _unclosed(ledger: LedgerView) -> dict[str, str]:
    """Node -> how its arms count without a closing baseline."""
    left = "left before its closing baseline, so its arms are compared with its opening one alone"
    return dict.fromkeys(sorted(unclosed_nodes(ledger) & gone_nodes(ledger)), left)
