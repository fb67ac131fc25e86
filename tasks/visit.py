"""One visit: start the server, warm up, drive each block, read the counters around it, stop. No Ray in here."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.defects import refuse_known_defects, sampling_collapse
from orchestrator.engine_build import EngineBuild
from orchestrator.errors import ArmMismatch, LoadFailed, NodeInterrupted, NodeUnavailable, OrchestratorError
from orchestrator.node_kinds import numa_index
from orchestrator.one_engine import require_same
from orchestrator.provenance import library_versions
from orchestrator.records import (
    Block,
    BlockRecord,
    CpuBinding,
    FinishedVisit,
    HostUse,
    MeasuredBlock,
    MeasuredWith,
    NodeInfo,
    Prompt,
    SpecCounters,
    VisitEvent,
    VisitRecord,
    VisitTask,
    WorkloadCell,
)
from orchestrator.secret_values import redacted, secrets_of
from tasks import notice
from tasks.arrival import due_times_s
from tasks.bandwidth import MAX_THREADS, memory_bandwidth_gb_per_s
from tasks.contamination import contamination, speculation_mismatch
from tasks.counters import EngineCounters, delta, read_counters
from tasks.cpu_binding import bound, cpu_binding, parse_cpus, process_on, thread_on
from tasks.engine import Engine
from tasks.external import ExternalServer
from tasks.host import probe_node, profile_mismatch, take_normal_priority
from tasks.host_use import HostReading, crowded, host_use
from tasks.load import LoadResult, Target, run_load, summarise
from tasks.model_files import fetch_models
from tasks.preflight import refuse_arm
from tasks.server import VllmServer
from tasks.server_log import applied_patches, thread_binding
from tasks.visit_folder import require_room, sockets_folder, visit_folder

COUNTERS_TIMEOUT_S = 10.0
END_NOTICE_S = 0.5
"""From the engine's last breath to its guard's report of the end, generously."""
MAX_LOG_BYTES = 2_000_000


PromptsByDataset = Mapping[str, tuple[Prompt, ...]]


def run_visit(task: VisitTask, prompts: PromptsByDataset) -> Iterator[VisitEvent]:
    """Measured blocks as they are finished, then one FinishedVisit, always the last.

    What goes wrong with server or load ends the visit with its reason in the record; blocks finished before count.
    """
    with visit_folder() as folder, sockets_folder(folder) as sockets_dir:
        run = _Run(task, prompts, folder / f"{task.visit.id}.log", sockets_dir)
        try:
            with notice.under_way():
                require_room(folder)
                yield from run.measure()
        except OrchestratorError as error:
            run.fail(error)
        yield run.finished()


class _Run:
    """The times and facts that a visit gathers on its way."""

    def __init__(self, task: VisitTask, prompts: PromptsByDataset, log_path: Path, sockets_dir: Path) -> None:
        self.task = task
        self.prompts = prompts
        self.log_path = log_path
        self.sockets_dir = sockets_dir
        self._start_clock()
        self.secrets = secrets_of(os.environ)
        """What neither the log nor a message may give away."""
        self.fetch_s: float | None = None
        self.model_revisions: dict[str, str] = {}
        self.local_models: dict[str, str] = {}
        self.server_start_s: float | None = None
        self.server_stop_s: float | None = None
        self.warmup_s = 0.0
        self.blocks_s = 0.0
        self.num_blocks = 0
        self.engine_version: str | None = None
        self.node_info: NodeInfo | None = None
        self.binding: CpuBinding | None = None
        self.preloaded: tuple[str, ...] | None = None
        self.error: str | None = None
        self.interrupted = False
        self.blames_node = False

    def fail(self, error: OrchestratorError) -> None:
        """Why the visit ends early; an engine that had to end in time before the node does says nothing of its arm."""
        knows_why = isinstance(error, NodeInterrupted | NodeUnavailable)
        announced = None if knows_why else notice.announced()
        if announced and announced.left_s < notice.NO_TIME_S:
            error = NodeInterrupted(f"{announced}: what was under way is cut off")
        self.interrupted = isinstance(error, NodeInterrupted)
        self.blames_node = isinstance(error, NodeUnavailable)
        self.error = f"{type(error).__name__}: {error}"

    def measure(self) -> Iterator[MeasuredBlock]:
        _refuse_interrupted()
        refuse_arm(self.task.visit.arm, self._temperatures)
        folders = self._fetch_models()
        refuse_arm(self.task.visit.arm, self._temperatures, folders)
        take_normal_priority()
        visit = self.task.visit
        self.binding = cpu_binding(visit.arm.server, numa_index(visit.node, self.task.hardware))
        self.node_info = self._probe()
        mismatch = profile_mismatch(self.task.hardware, self.node_info)
        if mismatch:
            raise NodeUnavailable(mismatch)
        with process_on(self.binding.load_cpus if self.binding else None):
            yield from self._serve(folders)

    def _probe(self) -> NodeInfo:
        if self.binding is None:
            return probe_node().model_copy(update={"memory_bandwidth_gb_per_s": memory_bandwidth_gb_per_s()})
        with thread_on(self.binding.cpus):
            bandwidth = memory_bandwidth_gb_per_s(min(MAX_THREADS, self.binding.num_cores))
        return probe_node().model_copy(update={"memory_bandwidth_gb_per_s": bandwidth})

    def _serve(self, folders: Mapping[str, str]) -> Iterator[MeasuredBlock]:
        limits, server = self.task.server, self._engine(folders)
        self.secrets.append(server.api_key)
        begun = time.monotonic()
        with server, notice.ended_in_time(server.pid):
            self.preloaded = server.preloaded
            server.wait_until_ready(timeout_s=limits.ready_timeout_s)
            self.server_start_s = time.monotonic() - begun
            self.engine_version = server.engine_version
            require_same(MeasuredWith(engine_version=self.engine_version), self.task.measured_with)
            server.verify_configuration()
            self._refuse_defects(server.build)
            target = Target(base_url=server.base_url, api_key=server.api_key, model=server.model_name)
            yield from self._blocks(server, target)
            begun = time.monotonic()
        self.server_stop_s = time.monotonic() - begun

    def _engine(self, folders: Mapping[str, str]) -> Engine:
        limits, visit = self.task.server, self.task.visit
        if visit.arm.server.launcher == "external":
            return ExternalServer(visit.arm.server, name=visit.id)
        return VllmServer(
            bound(visit.arm.server, self.binding),
            name=visit.id,
            log_path=self.log_path,
            port=limits.port,
            stop_grace_s=limits.stop_grace_s,
            cpus=self.binding.cpus if self.binding else None,
            folders=folders,
            sockets_dir=self.sockets_dir,
        )

    @property
    def _temperatures(self) -> list[float]:
        return [cell.temperature for cell in self.task.workloads.values()]

    def _refuse_defects(self, build: EngineBuild) -> None:
        """Again, for an engine that was not known before it ran."""
        arm = self.task.visit.arm
        for temperature in self._temperatures:
            refuse_known_defects(build, arm.method, temperature, arm.server.patches)

    def _fetch_models(self) -> dict[str, str]:
        """Model -> folder. The visit's own time begins after it. A server that is already there has its own."""
        if self.task.visit.arm.server.launcher == "external":
            return {}
        models = fetch_models(self.task.visit.arm.server, self.task.model_revisions, self.task.model_mirror)
        self.fetch_s, self.model_revisions, self.local_models = models.fetch_s, models.revisions, models.local
        require_same(MeasuredWith(local_models=models.local), self.task.measured_with)
        self._start_clock()
        return models.folders

    def _start_clock(self) -> None:
        self.started = time.monotonic()
        self.started_utc = datetime.now(UTC).isoformat()

    def _blocks(self, server: Engine, target: Target) -> Iterator[MeasuredBlock]:
        warm: set[str] = set()
        for block in self.task.blocks:
            cell = self.task.workloads[block.workload_id]
            if cell.id not in warm:
                self._warm_up(server, target, cell)
                warm.add(cell.id)
            _refuse_interrupted()
            measured = self._measure_block(server, target, cell, block)
            self.num_blocks += 1
            yield measured

    def _warm_up(self, server: Engine, target: Target, cell: WorkloadCell) -> None:
        """All at once in an open loop. What it leaves in a prefix cache, nothing that is measured finds."""
        begun, cell = time.monotonic(), cell.model_copy(update={"id": f"{cell.id}-warm-up"})
        before = _counters(target)
        load = _drive(server, target, self._pick(cell, cell.warmup_prompt_indices), cell)
        counters = delta(before, _counters(target))
        self.warmup_s += time.monotonic() - begun
        failed = [request.error for request in load.requests if request.error]
        if len(failed) == len(load.requests):
            raise LoadFailed(
                f"{self.task.visit.id}: all {len(failed)} warm-up requests of {cell.name} failed: {failed[0]}"
            )
        mismatch = speculation_mismatch(self.task.visit.arm, cell, counters.spec)
        if mismatch:
            raise ArmMismatch(f"{self.task.visit.id}: {mismatch}")
        if counters.spec and cell.temperature > 0:
            self._refuse_collapse(server, target, cell, counters.spec)

    def _refuse_collapse(self, server: Engine, target: Target, cell: WorkloadCell, sampled: SpecCounters) -> None:
        """The same prompts once more at temperature 0, to compare what is accepted."""
        begun = time.monotonic()
        before = _counters(target)
        _drive(
            server, target, self._pick(cell, cell.warmup_prompt_indices), cell.model_copy(update={"temperature": 0.0})
        )
        greedy = delta(before, _counters(target)).spec
        self.warmup_s += time.monotonic() - begun
        collapse = sampling_collapse(sampled, greedy) if greedy else None
        if collapse:
            raise ArmMismatch(f"{self.task.visit.id}: {cell.name}: {collapse}")

    def _measure_block(self, server: Engine, target: Target, cell: WorkloadCell, block: Block) -> MeasuredBlock:
        started_utc = datetime.now(UTC).isoformat()
        begun = time.monotonic()
        before, host_before = _counters(target), HostReading.take(server.pid, self._own_cpus)
        prompts = self._pick(cell, block.prompt_indices)
        due_s = due_times_s(cell, block.index, [prompt for _, prompt in prompts])
        load = _drive(server, target, prompts, cell, due_s)
        host = host_use(host_before, HostReading.take(server.pid, self._own_cpus))
        counters = _settled_delta(target, before, load)
        self.blocks_s += time.monotonic() - begun
        return MeasuredBlock(
            record=self._record(cell, block, load, counters, host, started_utc),
            requests=load.requests,
        )

    @property
    def _own_cpus(self) -> frozenset[int] | None:
        """Where the node has other servers, the only CPUs on which others are in the way."""
        shares_node = self.task.hardware.server_per == "numa_node"
        return parse_cpus(self.binding.cpus) if self.binding and shares_node else None

    def _record(
        self,
        cell: WorkloadCell,
        block: Block,
        load: LoadResult,
        counters: EngineCounters,
        host: HostUse,
        started_utc: str,
    ) -> BlockRecord:
        visit = self.task.visit
        summary = summarise(load.requests, cell)
        contaminated = contamination(visit.arm, cell, counters, summary.output_tokens)
        return BlockRecord(
            arm_id=visit.arm.id,
            block_id=block.id,
            workload_id=cell.id,
            block_index=block.index,
            visit_id=visit.id,
            attempt=visit.attempt,
            phase=visit.phase,
            node=visit.node,
            started_utc=started_utc,
            wall_s=load.wall_s,
            num_requests=len(load.requests),
            prompt_tokens=summary.prompt_tokens,
            output_tokens=summary.output_tokens,
            counters=None if visit.arm.is_baseline else counters.spec,
            prefix_cache=counters.prefix_cache if visit.arm.server.enable_prefix_caching else None,
            ttft_s=summary.ttft_s,
            tpot_s=summary.tpot_s,
            e2e_s=summary.e2e_s,
            itl_s=summary.itl_s,
            output_sha256=summary.output_sha256,
            client_cpu_cores=load.client_cpu_cores,
            client_wait_share=load.client_wait_share,
            open_loop=summary.open_loop,
            host=host,
            void_reason=summary.void_reason or contaminated or self._crowded(host, load.wall_s),
        )

    def _crowded(self, host: HostUse, wall_s: float) -> str | None:
        if self.task.visit.arm.server.launcher == "external":
            return None  # which process is the engine, and on which machine, is not known
        return crowded(self.task.hardware, host, wall_s)

    def _pick(self, cell: WorkloadCell, indices: tuple[int, ...]) -> list[tuple[int, Prompt]]:
        prompts = self.prompts[cell.dataset]
        return [(index, prompts[index]) for index in indices]

    def finished(self) -> FinishedVisit:
        visit = self.task.visit
        log = redacted(_tail(self.log_path), self.secrets)
        record = VisitRecord(
            visit_id=visit.id,
            arm_id=visit.arm.id,
            attempt=visit.attempt,
            phase=visit.phase,
            node=visit.node,
            started_utc=self.started_utc,
            server_start_s=self.server_start_s,
            warmup_s=self.warmup_s,
            blocks_s=self.blocks_s,
            server_stop_s=self.server_stop_s,
            wall_s=time.monotonic() - self.started,
            num_blocks=self.num_blocks,
            engine_version=self.engine_version,
            node_info=self.node_info,
            thread_binding=thread_binding(self.log_path) if log else None,
            engine_patches=applied_patches(self.log_path) if log else (),
            cpu_binding=self.binding,
            preloaded=self.preloaded,
            versions=library_versions(),
            server_log=self.log_path.name if log else None,
            error=redacted(self.error, self.secrets) if self.error else None,
            fetch_s=self.fetch_s,
            model_revisions=self.model_revisions,
            local_models=self.local_models,
            interrupted=self.interrupted,
            blames_node=self.blames_node,
        )
        return FinishedVisit(record=record, server_log=log)


def _refuse_interrupted() -> None:
    if announced := notice.announced():
        raise NodeInterrupted(f"{announced}: no more blocks are taken here")


def _drive(
    server: Engine,
    target: Target,
    prompts: Sequence[tuple[int, Prompt]],
    cell: WorkloadCell,
    due_s: Sequence[float] | None = None,
) -> LoadResult:
    """The load; where a request failed because the engine died, its own words instead of a refused connection."""
    load = run_load(target, prompts, cell, due_s)
    if any(request.error for request in load.requests):
        time.sleep(END_NOTICE_S)
        server.raise_if_ended()
    return load


def _counters(target: Target) -> EngineCounters:
    return read_counters(target.base_url, target.api_key, timeout_s=COUNTERS_TIMEOUT_S)


def _settled_delta(target: Target, before: EngineCounters, load: LoadResult) -> EngineCounters:
    """Counters since `before`, read again for up to a second while the engine's token count lags behind."""
    expected = sum(request.output_tokens or 0 for request in load.requests)
    deadline = time.monotonic() + 1.0
    while True:
        counters = delta(before, _counters(target))
        settled = counters.generation_tokens is None or counters.generation_tokens >= expected
        if settled or time.monotonic() > deadline:
            return counters
        time.sleep(0.05)


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    return path.read_bytes()[-MAX_LOG_BYTES:].decode(errors="replace")
