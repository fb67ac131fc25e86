"""What makes a node's figures unstable, and what does not."""

from pathlib import Path

import pytest

from orchestrator.ledger import Ledger
from orchestrator.plan import Plan
from orchestrator.records import HostUse
from orchestrator.validity import unstable_nodes
from tests.unit.report_fixture import NODE, make_block, make_plan, make_visit


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan()


def reasons(
    plan: Plan, folder: Path, *visits: dict[str, object], uses: tuple[dict[str, object], ...] = ()
) -> dict[str, list[str]]:
    """Node -> reasons; `visits` change NODE, `uses` a quiet block, each on node-a unless they name another."""
    ledger = Ledger(folder / "ledger.jsonl")
    for changes in visits:
        node = changes.pop("node", "node-a")
        ledger.append(make_visit(plan, node=node, node_info=NODE.model_copy(update=changes)))
    for index, changes in enumerate(uses):
        quiet: dict[str, object] = {"num_cpus": 64, "other_cpu_cores": 0.1, "steal_share": 0.0, "clock_mhz": 3000.0}
        node = changes.pop("node", "node-a")
        use = HostUse.model_validate(quiet | changes)
        ledger.append(make_block(plan, block_id=f"b{index}", node=node, host=use))
    found: dict[str, list[str]] = {}
    for each in unstable_nodes(ledger):
        found.setdefault(each.node, []).append(each.reason)
    return found


def test_quiet_nodes_give_no_reason(plan: Plan, tmp_path: Path) -> None:
    assert not reasons(plan, tmp_path, {}, {"node": "node-b"}, uses=({}, {"node": "node-b"}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"governor": "powersave"}, "CPU frequency governor is powersave; set it to performance"),
        ({"transparent_hugepage": "never"}, "transparent huge pages are off; set them to madvise or always"),
        ({"load_average_1m": 40.0}, "load average was 40 on 64 CPUs before its first server"),
    ],
)
def test_each_setting_is_a_reason(plan: Plan, tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    assert reasons(plan, tmp_path, changes) == {"node-a": [reason]}


def test_load_generator_that_waits_for_a_cpu_is_a_reason(plan: Plan, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for index, share in enumerate((0.7, 0.9)):
        ledger.append(make_block(plan, block_id=f"b{index}", client_wait_share=share))

    [found] = unstable_nodes(ledger)

    assert found.reason.startswith("the load generator waited for a CPU 80 % of the time")


def test_what_is_not_readable_is_no_reason(plan: Plan, tmp_path: Path) -> None:
    unknown: dict[str, object] = {"governor": None, "transparent_hugepage": None}
    assert not reasons(plan, tmp_path, unknown, uses=({"steal_share": None, "clock_mhz": None},))


def test_load_that_the_sweep_itself_made_is_no_reason(plan: Plan, tmp_path: Path) -> None:
    assert not reasons(plan, tmp_path, {"load_average_1m": 0.1}, {"load_average_1m": 60.0})


def test_steal_is_a_reason_and_voids_nothing(plan: Plan, tmp_path: Path) -> None:
    found = reasons(plan, tmp_path, {}, uses=({"steal_share": 0.05}, {"steal_share": 0.01}))

    assert found == {"node-a": ["the hypervisor took 3 % of its CPU time away; ask for dedicated cores"]}


def test_other_processes_below_the_limit_of_void_are_a_reason(plan: Plan, tmp_path: Path) -> None:
    found = reasons(plan, tmp_path, uses=({"other_cpu_cores": 4.0},))

    assert found == {"node-a": ["other processes used 6.2 % of its CPUs beside the engine"]}


def test_clock_below_the_fleets_is_a_reason(plan: Plan, tmp_path: Path) -> None:
    uses: tuple[dict[str, object], ...] = ({}, {"node": "node-b"}, {"node": "node-c", "clock_mhz": 2400.0})

    assert reasons(plan, tmp_path, uses=uses) == {
        "node-c": ["its clock was 2,400 MHz under load, the fleet's 3,000 MHz"]
    }
