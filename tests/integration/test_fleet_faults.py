"""What happens to the hosts of a fleet while sweeps run on it: they hang, the driver is killed, the head restarts."""

import time
from collections.abc import Iterator

import psutil
import pytest

from orchestrator.policy import unclosed_nodes
from orchestrator.records import BlockRecord
from orchestrator.sweep_dir import newest_sweep
from tests.integration.hosts import Host, Hosts, hosts, wait_until, why_not
from tests.integration.sweeping import Ended, Sandbox, measured_twice, sandbox, slow, small

REASON = why_not()
pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(REASON is not None, reason=str(REASON))]
SERVER = "standin/server.py"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A head, a driver, and the nodes a and b."""
    with sandbox(tmp_path_factory.mktemp("fleet")) as box, hosts(box) as found:
        found.head()
        found.driver()
        found.nodes("a", "b")
        yield found


@pytest.fixture
def box(fleet: Hosts) -> Sandbox:
    return fleet.box


def arguments(name: str, step_ms: float = 60) -> list[str]:
    return [
        *small(f"name={name}", "speculation.num_speculative_tokens=[1,2,3,7]", extra_args=slow(step_ms)),
        *("cluster.node_return_s=2", "server.stop_grace_s=2"),
    ]


def servers(fleet: Hosts) -> list[psutil.Process]:
    return [process for name in ("a", "b") for process in fleet[name].processes(SERVER)]


def require_whole(fleet: Hosts, ended: Ended, name: str) -> None:
    """All measured once, and no server left."""
    assert ended.exit_code == 0, ended
    sweep = newest_sweep(fleet.box.path / "results", name)
    assert sweep
    ledger = sweep.ledger()
    assert not measured_twice(ledger)
    assert len([block for block in ledger.valid_blocks() if block.phase == "arm"]) == 4 * 2
    selection = sweep.selection()
    assert selection
    assert set(selection.provenance.nodes_unclosed) == unclosed_nodes(ledger)
    assert servers(fleet) == []


def blocks(box: Sandbox, name: str) -> list[BlockRecord]:
    sweep = newest_sweep(box.path / "results", name)
    return list(sweep.ledger().blocks()) if sweep else []


def has_errors(box: Sandbox, name: str, node: str) -> bool:
    sweep = newest_sweep(box.path / "results", name)
    return sweep is not None and any(visit.node == node and visit.error for visit in sweep.ledger().visits())


def test_two_sweeps_share_the_nodes_of_a_cluster(fleet: Hosts, box: Sandbox) -> None:
    names = ("one", "other")
    running = [fleet.sweep(*arguments(name, step_ms=5), host="driver") for name in names]
    ended = [sweep.wait() for sweep in running]
    for name, each in zip(names, ended, strict=True):
        require_whole(fleet, each, name)


def test_visit_of_a_node_that_hangs_goes_elsewhere_and_its_server_ends_when_it_goes_on(
    fleet: Hosts, box: Sandbox
) -> None:
    b = fleet["b"]
    running = fleet.sweep(*arguments("hangs", step_ms=150), host="driver")
    running.until(lambda: b.processes(SERVER) != [])
    b.stop_all()
    stopped = time.monotonic()
    running.until(lambda: has_errors(box, "hangs", "b"), timeout_s=40)
    assert time.monotonic() - stopped < 30
    b.go_on()
    wait_until(lambda: b.processes(SERVER) == [], timeout_s=40)
    require_whole(fleet, running.wait(), "hangs")
    restart(fleet, b)


def test_killed_driver_leaves_no_server_on_any_node_and_the_same_command_continues(fleet: Hosts, box: Sandbox) -> None:
    running = fleet.sweep(*arguments("killed"), host="driver")
    running.until(lambda: len(blocks(box, "killed")) >= 2)
    [driver] = fleet["driver"].processes("orchestrator sweep")
    driver.kill()
    running.wait()
    wait_until(lambda: servers(fleet) == [], timeout_s=30)
    kept = blocks(box, "killed")
    require_whole(fleet, fleet.sweep(*arguments("killed"), host="driver").wait(), "killed")
    assert blocks(box, "killed")[: len(kept)] == kept


def test_sweep_whose_head_dies_ends_soon_and_continues_under_a_new_head(fleet: Hosts, box: Sandbox) -> None:
    head, nodes = fleet["head"], [fleet["a"], fleet["b"]]
    running = fleet.sweep(*arguments("headless"), host="driver")
    running.until(lambda: len(blocks(box, "headless")) >= 2)
    head.die()
    died = time.monotonic()
    ended = running.wait()
    assert time.monotonic() - died < 60
    assert ended.exit_code == 3, ended
    assert "the same command continues" in ended.stderr
    wait_until(lambda: servers(fleet) == [], timeout_s=40)
    kept = blocks(box, "headless")

    head.boot_again()
    fleet.start_head(head)
    for host in (fleet["driver"], *nodes):
        restart(fleet, host)
    require_whole(fleet, fleet.sweep(*arguments("headless"), host="driver").wait(), "headless")
    assert blocks(box, "headless")[: len(kept)] == kept


def restart(fleet: Hosts, host: Host) -> None:
    """As a service manager does."""
    host.kill_all()
    if host.name == "driver":
        fleet.join_driver(host)
    else:
        fleet.join(host)
