"""An arm's server as its visits ran it, which every file and command that puts it into service starts again. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from orchestrator.node_kinds import NUMA
from orchestrator.records import Arm, CpuBinding, ServerSpec, VisitRecord
from tasks.cpu_binding import bound
from tasks.server_command import OPENMP, TCMALLOC, arm_env, located


@dataclass(frozen=True)
class MeasuredServer:
    """One server of an arm, with what its plan leaves to node and hub filled in."""

    arm: str
    """Its name."""
    spec: ServerSpec
    """Located, its threads bound and its models at the commits as they were measured."""
    cpus: str | None = None
    """What keeps it off the CPUs of the node's other servers; None: it has the node for itself."""
    preloaded: tuple[str, ...] | None = None
    """As VisitRecord.preloaded."""
    engine_version: str | None = None

    def ld_preload(self, engine_lib: str) -> str | None:
        """The engine's LD_PRELOAD where its environment's libraries lie in `engine_lib`; None: the image's own, which
        is what was measured."""
        if self.spec.launcher == "docker":
            return None
        libraries = self.preloaded if self.preloaded is not None else _asked_for(self.spec)
        return ":".join(f"{engine_lib}/{OPENMP}" if PurePath(name).name == OPENMP else name for name in libraries)

    def environment(self, engine_lib: str) -> dict[str, str]:
        """All that the engine's environment has from the arm; an empty LD_PRELOAD takes an image's away."""
        return arm_env(self.spec, self.ld_preload(engine_lib))


def measured_servers(
    arm: Arm, arms: Iterable[Arm] = (), visits: Sequence[VisitRecord] = ()
) -> tuple[MeasuredServer, ...]:
    """One server, or with a server per NUMA node one for each of a node's.

    Args:
        arms: of the sweep, whose servers may have been bound the same way.
        visits: of the sweep; without those of the arm it is as configured, at the commits that the sweep served.
    """
    own = [visit for visit in visits if visit.arm_id == arm.id]
    engines = [visit.engine_version for visit in [*visits, *own] if visit.engine_version]
    revisions = {name: commit for visit in [*visits, *own] for name, commit in visit.model_revisions.items()}
    server = MeasuredServer(
        arm=arm.name,
        spec=located(_pinned(arm.server, revisions)),
        preloaded=next((visit.preloaded for visit in reversed(own) if visit.preloaded is not None), None),
        engine_version=engines[-1] if engines else None,
    )
    bindings = bindings_of(arm, arms, visits)
    has_neighbours = arm.server.server_per == "numa_node"
    return tuple(
        replace(server, spec=bound(server.spec, binding), cpus=binding.cpus if has_neighbours else None)
        for binding in bindings
    ) or (server,)


def bindings_of(arm: Arm, arms: Iterable[Arm], visits: Iterable[VisitRecord]) -> list[CpuBinding]:
    """Where the arm's servers of one node were bound, by NUMA node; none where vLLM chose.

    With a server per NUMA node the arm itself need not have run on all of them: `arms` that ask for the same ranks and
    reserved cores were bound as it would have been.
    """
    if not _is_bound(arm.server):
        return []
    alike = {arm.id, *(other.id for other in arms if _placement(other.server) == _placement(arm.server))}
    found = {
        tuple(visit.node.partition(NUMA)[::2]): visit.cpu_binding
        for visit in visits
        if visit.cpu_binding and visit.arm_id in alike
    }
    node = min((node for node, _ in found), default=None)
    slots = sorted((int(number or 0), binding) for (name, number), binding in found.items() if name == node)
    return [binding for _, binding in slots]


def _is_bound(spec: ServerSpec) -> bool:
    return spec.server_per == "numa_node" or spec.reserved_cores > 0


def _placement(spec: ServerSpec) -> tuple[object, ...]:
    """All of a spec that tasks.cpu_binding goes by."""
    return spec.server_per, spec.reserved_cores, spec.tensor_parallel_size


def _pinned(spec: ServerSpec, revisions: Mapping[str, str]) -> ServerSpec:
    """With the commits that were served, in place of a branch or of nothing; models go by the names of the plan."""
    config = spec.speculative_config
    if config is not None and (commit := revisions.get(str(config.get("model")))):
        config = config | {"revision": commit}
    revision = revisions.get(spec.target, spec.revision)
    return spec.model_copy(update={"revision": revision, "speculative_config": config})


def _asked_for(spec: ServerSpec) -> list[str]:
    return [*([OPENMP] if spec.preload_openmp else []), *([TCMALLOC] if spec.preload_tcmalloc else [])]
