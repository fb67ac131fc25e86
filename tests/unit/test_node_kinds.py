"""Which of a cluster's nodes are of which hardware, and what is said where none is."""

import pytest

from orchestrator.config import Hardware
from orchestrator.errors import NodeUnavailable
from orchestrator.node_kinds import numa_index, require_nodes, slots_of

R8I = Hardware(name="r8i", node_labels={"specsweep.io/hardware": "r8i"})
C8I = Hardware(name="c8i", node_labels={"specsweep.io/hardware": "c8i"})
LOCAL = Hardware(name="local")
PER_NUMA = Hardware(name="numa", server_per="numa_node")


def node(name: str, units: int = 1, id_: str = "1234567890", **labels: str) -> dict[str, object]:
    own = {"specsweep.io/" + key: value for key, value in labels.items()}
    return {
        "NodeID": id_,
        "NodeName": name,
        "NodeManagerAddress": "10.0.0.7",
        "NodeManagerHostname": "host",
        "Resources": {"CPU": 64.0, **({"xeon_node": float(units)} if units else {})},
        "Labels": {"ray.io/node-id": id_, **own},
    }


def test_node_counts_where_it_offers_the_resource_and_carries_every_label() -> None:
    nodes = [
        node("a", id_="a1", hardware="r8i", rack="7"),
        node("b", id_="b1", hardware="c8i"),
        node("c"),
        node("head", 0, hardware="r8i"),
    ]

    assert slots_of(R8I, [R8I, C8I], nodes) == {"a": "a1"}
    assert slots_of(C8I, [R8I, C8I], nodes) == {"b": "b1"}


def test_profile_without_labels_takes_every_node_that_offers_the_resource() -> None:
    assert list(slots_of(LOCAL, [LOCAL], [node("a"), node("b", hardware="r8i"), node("head", 0)])) == ["a", "b"]


def test_node_without_a_name_of_its_own_is_called_as_its_host_and_double_names_are_told_apart() -> None:
    nodes = [node("10.0.0.7", id_="aaaaaaaa11"), node("host", id_="bbbbbbbb22")]

    assert list(slots_of(LOCAL, [LOCAL], nodes)) == ["host-aaaaaaaa", "host-bbbbbbbb"]


def test_server_per_numa_node_gives_a_slot_for_each_unit_of_the_resource() -> None:
    slots = slots_of(PER_NUMA, [PER_NUMA], [node("a", 2)])

    assert slots == {"a/numa0": "1234567890", "a/numa1": "1234567890"}
    assert [numa_index(slot, PER_NUMA) for slot in slots] == [0, 1]
    assert list(slots_of(LOCAL, [LOCAL], [node("a", 2)])) == ["a"]
    assert numa_index("a", LOCAL) is None


def test_node_of_two_kinds_is_refused_at_the_start_and_left_out_later() -> None:
    nodes = [node("a", hardware="r8i")]

    with pytest.raises(NodeUnavailable, match=r"node a \(xeon_node 1; specsweep.io/hardware=r8i\) is of hardware=r8i"):
        require_nodes([R8I, LOCAL], nodes, "h:1")
    assert slots_of(R8I, [R8I, LOCAL], nodes) == slots_of(LOCAL, [R8I, LOCAL], nodes) == {}


def test_error_has_the_whole_command_and_the_labels_of_the_live_nodes() -> None:
    nodes = [node("head", 0), *(node(f"n{i}", hardware="c8i", rack="7") for i in range(6))]

    with pytest.raises(NodeUnavailable) as caught:
        require_nodes([R8I], nodes, "head:6379")

    assert str(caught.value) == (
        "no node of the Ray cluster at head:6379 offers the resource 'xeon_node' and carries the labels "
        "specsweep.io/hardware=r8i that hardware=r8i asks for; start workers with `RAY_worker_niceness=0 ray start "
        "--address=head:6379 --resources='{\"xeon_node\": 1}' --labels=specsweep.io/hardware=r8i` (live nodes: "
        "head (without the resource; no labels); "
        + "; ".join(f"n{i} (xeon_node 1; specsweep.io/hardware=c8i, specsweep.io/rack=7)" for i in range(4))
        + "; and 2 more)"
    )


@pytest.mark.parametrize(("numa_nodes", "units"), [(2, "2"), (None, '"NUMA_NODES"')])
def test_command_offers_a_unit_for_each_numa_node(numa_nodes: int | None, units: str) -> None:
    with pytest.raises(NodeUnavailable) as caught:
        require_nodes([PER_NUMA.model_copy(update={"numa_nodes": numa_nodes})], [], "head:6379")

    assert f"--resources='{{\"xeon_node\": {units}}}'`" in str(caught.value)
