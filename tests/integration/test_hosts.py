"""A sweep over hosts that are cut off, die and join while it runs."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.policy import unclosed_nodes
from orchestrator.records import VisitRecord
from tests.integration.hosts import Hosts, hosts, wait_until, why_not
from tests.integration.sweeping import Sandbox, measured_twice, sandbox, slow, small

pytestmark = pytest.mark.timeout(300)
REASON = why_not()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path) as found:
        yield found


@pytest.fixture
def fleet(box: Sandbox) -> Iterator[Hosts]:
    with hosts(box) as found:
        yield found


def lost_visits(box: Sandbox, node: str) -> list[VisitRecord]:
    return [visit for visit in box.ledger_on_disk().visits() if visit.node == node and visit.error]


def is_measuring_an_arm(box: Sandbox, node: str) -> bool:
    """Its opening baseline is done, and its next server runs."""
    return any(visit.node == node and visit.phase == "opening" for visit in box.ledger_on_disk().visits())


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_twelve_visits_end_whole_with_a_node_cut_off_one_dead_and_one_added(
    box: Sandbox, fleet: Hosts, record_property: Callable[[str, object], None]
) -> None:
    """Node b is cut off and comes back, c's raylet is killed for good, d joins late."""
    fleet.head()
    a, b, c = fleet.nodes("a", "b", "c")
    running = fleet.sweep(
        *small(
            "speculation.num_speculative_tokens=[1,2,3,4,5,7]",  # six arms and two baselines on each of three nodes
            "workload.num_blocks=2",
            extra_args=slow(120),
        ),
        *("cluster.node_return_s=5", "server.stop_grace_s=2"),
    )

    running.until(lambda: is_measuring_an_arm(box, "b") and b.processes("standin/server.py") != [])
    fleet.cut(b)
    cut = time.monotonic()
    running.until(lambda: lost_visits(box, "b") != [], timeout_s=30)
    record_property("cut_off_node_is_given_up_after_s", time.monotonic() - cut)
    wait_until(lambda: b.processes("standin/server.py") == [], timeout_s=40)
    record_property("cut_off_node_stops_its_server_after_s", time.monotonic() - cut)

    c.raylet().kill()
    killed = time.monotonic()
    running.until(lambda: lost_visits(box, "c") != [], timeout_s=30)
    record_property("dead_raylet_is_noticed_after_s", time.monotonic() - killed)
    wait_until(lambda: c.processes("standin/server.py") == [], timeout_s=40)
    record_property("its_server_is_gone_after_s", time.monotonic() - killed)

    d = fleet.node("d")
    added = time.monotonic()
    running.until(lambda: d.processes("standin/server.py") != [], timeout_s=30)
    record_property("added_node_starts_a_server_after_s", time.monotonic() - added)
    fleet.mend(b)
    mended = time.monotonic()
    wait_until(lambda: b.processes("raylet/raylet") == [], timeout_s=40)
    record_property("raylet_of_the_cut_off_node_ends_after_s", time.monotonic() - mended)
    ended = running.wait()

    assert ended.exit_code == 0, ended
    ledger = box.ledger()
    assert not measured_twice(ledger)
    arms = Counter(block.arm_id for block in ledger.valid_blocks() if block.phase == "arm")
    assert sorted(arms.values()) == [2] * 6
    lost = [visit for visit in ledger.visits() if visit.error]
    assert {visit.node for visit in lost} == {"b", "c"}
    assert [visit for visit in lost if not visit.blames_node] == []
    # Ray may find a connection dead before it counts the node out, and another visit may start there in between.
    reasons = {visit.error for visit in lost}
    assert reasons <= {f"node {node} {what}" for node in "bc" for what in ("left the cluster", "does not answer")}
    closed = {visit.node for visit in ledger.visits() if visit.phase == "closing"}
    measured = {block.node for block in ledger.valid_blocks() if block.phase == "arm"}
    assert {"a", "d"} & measured <= closed
    assert unclosed_nodes(ledger) <= {"b", "c"}
    assert set(box.selection().provenance.nodes_unclosed) == unclosed_nodes(ledger)
    assert all(host.processes("standin/server.py") == [] for host in (a, b, c, d))
