"""What an arm's visits tell of its server: its own CPUs, its commits, its libraries, and nobody else's."""

from collections.abc import Sequence

from orchestrator.deploy import LIB_IN_IMAGE, recommend_commands
from orchestrator.measured_server import bindings_of, measured_servers
from orchestrator.records import Arm, CpuBinding, VisitRecord
from tests.unit.builders import make_plan, visit_of

COMMIT = "a" * 40


def arm(arm_id: str, **server: object) -> Arm:
    found = make_plan([7]).arms[1]
    return found.model_copy(update={"id": arm_id, "server": found.server.model_copy(update=server)})


def visit(of: Arm, node: str = "a", bind: str | None = None, **changes: object) -> VisitRecord:
    binding = bind and CpuBinding(cpus=f"0-{bind}", num_cores=4, omp_threads_bind=bind, load_cpus="0")
    return visit_of(of, node, cpu_binding=binding or None, **changes)


def binds(of: Arm, arms: Sequence[Arm], visits: Sequence[VisitRecord]) -> list[str]:
    return [binding.omp_threads_bind for binding in bindings_of(of, arms, visits)]


def test_an_arm_has_the_cpus_that_it_was_bound_to_and_not_those_of_another_reserve_or_rank() -> None:
    one, two, ranks = arm("one", reserved_cores=1), arm("two", reserved_cores=2), arm("tp", reserved_cores=1)
    ranks = ranks.model_copy(update={"server": ranks.server.model_copy(update={"tensor_parallel_size": 2})})
    visits = [visit(one, bind="0-2"), visit(two, bind="0-1"), visit(ranks, bind="0|1")]

    assert [binds(each, (one, two, ranks), visits) for each in (one, two, ranks)] == [["0-2"], ["0-1"], ["0|1"]]


def test_an_arm_that_vllm_bound_by_itself_has_no_binding_of_others() -> None:
    free, kept = arm("free"), arm("kept", reserved_cores=1)

    assert binds(free, (free, kept), [visit(kept, bind="0-2"), visit(free)]) == []


def test_numa_nodes_that_an_arm_did_not_run_on_are_bound_as_for_arms_placed_alike() -> None:
    mine, other = arm("mine", server_per="numa_node"), arm("other", server_per="numa_node", enforce_eager=True)
    aside = arm("aside", server_per="numa_node", reserved_cores=1)
    visits = [visit(mine, "a/numa1", "4-7"), visit(other, "a/numa0", "0-3"), visit(aside, "a/numa0", "0-2")]

    assert binds(mine, (mine, other, aside), visits) == ["0-3", "4-7"]


def test_the_commits_that_were_served_are_exported_for_target_and_drafter() -> None:
    mine = arm("mine", revision="main")
    served = visit(mine, model_revisions={"org/target": COMMIT, "org/drafter": "b" * 40})

    commands = recommend_commands(measured_servers(mine, (mine,), [served]), "")

    for command in (commands.vllm_serve, commands.docker_run):
        assert f"--revision {COMMIT}" in command
        assert f'"revision":"{"b" * 40}"' in command


def test_an_arm_without_visits_of_its_own_has_the_commits_of_its_sweep() -> None:
    mine, other = arm("mine"), arm("other")
    [server] = measured_servers(mine, (), [visit(other, model_revisions={"org/target": COMMIT})])

    assert server.spec.revision == COMMIT


def test_the_engine_is_the_one_that_the_arm_itself_ran_on() -> None:
    mine, other = arm("mine"), arm("other")
    visits = [visit(mine, engine_version="0.32.0"), visit(other, engine_version="0.33.0")]

    assert measured_servers(mine, (), visits)[0].engine_version == "0.32.0"


def test_libraries_are_those_that_were_preloaded_else_those_asked_for() -> None:
    asked = arm("mine", preload_tcmalloc=True)
    without_openmp = visit(asked, preloaded=("libtcmalloc_minimal.so.4",))
    nothing = visit(asked, preloaded=())

    found = [
        measured_servers(asked, (), visits)[0].ld_preload("/e/lib") for visits in ([], [without_openmp], [nothing])
    ]

    assert found == ["/e/lib/libiomp5.so:libtcmalloc_minimal.so.4", "libtcmalloc_minimal.so.4", ""]


def test_an_image_preloads_what_was_measured_without_it_and_keeps_its_own_where_it_was_measured() -> None:
    process, image = arm("process"), arm("image", launcher="docker", image="vllm/vllm-openai-cpu:v0.32.0")

    of_process, of_image = (recommend_commands(measured_servers(each), "").docker_run for each in (process, image))

    assert f" -e LD_PRELOAD={LIB_IN_IMAGE}/libiomp5.so " in of_process
    assert "LD_PRELOAD" not in of_image
