"""The ledger keeps every record once, survives a crash, and names the line that somebody damaged."""

import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import LedgerError
from orchestrator.ledger import Ledger, LedgerFile, LedgerView, key_of, measurement_key
from orchestrator.records import BlockRecord, Phase, SessionRecord, VisitRecord

UTC = "2026-10-01T12:00:00Z"


def block(
    block_id: str = "b1",
    *,
    arm_id: str = "a1",
    phase: Phase = "arm",
    node: str = "n1",
    attempt: int = 1,
    void_reason: str | None = None,
) -> BlockRecord:
    return BlockRecord(
        arm_id=arm_id,
        block_id=block_id,
        workload_id="w1",
        block_index=0,
        visit_id=f"v{attempt}",
        attempt=attempt,
        phase=phase,
        node=node,
        started_utc=UTC,
        wall_s=2.0,
        num_requests=1,
        prompt_tokens=10,
        output_tokens=128,
        counters=None,
        ttft_s=(0.1,),
        tpot_s=(0.01,),
        e2e_s=(2.0,),
        itl_s={"p50": 0.01},
        output_sha256=("f00",),
        client_cpu_cores=0.1,
        void_reason=void_reason,
    )


def visit() -> VisitRecord:
    return VisitRecord(
        visit_id="v1", arm_id="a1", attempt=1, phase="arm", node="n1", started_utc=UTC, wall_s=9, num_blocks=1
    )


def content(ledger: LedgerView) -> tuple[list[BlockRecord], list[VisitRecord], list[SessionRecord]]:
    return list(ledger.blocks()), ledger.visits(), ledger.sessions()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def test_ledger_without_a_file_is_empty_and_writes_nothing(path: Path) -> None:
    assert Ledger(path).valid_blocks() == []
    assert not path.exists()


def test_reopened_ledger_holds_the_same_records_in_the_same_order(path: Path) -> None:
    ledger = Ledger(path)
    for record in (block("b1"), visit(), block("b2"), SessionRecord(started_utc=UTC, wall_s=3)):
        assert ledger.append(record)

    reopened = Ledger(path)

    assert content(reopened) == content(ledger)
    assert reopened.blocks() == [block("b1"), block("b2")]
    assert [record.block_id for record in reopened.valid_blocks()] == ["b1", "b2"]
    assert reopened.visits() == [visit()]
    assert [session.wall_s for session in reopened.sessions()] == [3]
    assert reopened.has(key_of(block("b2")))


def test_file_that_is_only_read_says_what_the_ledger_says(path: Path) -> None:
    ledger = Ledger(path)
    for record in (block("b1"), visit(), block("b2", void_reason="1 of 8 requests failed"), block("b3")):
        ledger.append(record)
    ledger.append(SessionRecord(started_utc=UTC, wall_s=3))

    file = LedgerFile(path)

    assert content(file) == content(ledger)
    assert list(file.valid_blocks()) == ledger.valid_blocks() == [block("b1"), block("b3")]
    assert file.void_blocks() == ledger.void_blocks()
    assert (len(file.blocks()), len(file.valid_blocks())) == (3, 2)
    assert [file.has(key_of(block(block_id))) for block_id in ("b1", "b2", "b3")] == [True, False, True]


def test_file_that_is_only_read_may_be_missing(path: Path) -> None:
    assert content(LedgerFile(path)) == ([], [], [])


def test_reading_blocks_from_the_file_holds_one_at_a_time(path: Path) -> None:
    ledger = Ledger(path)
    for number in range(20):
        ledger.append(block(f"b{number}"))
    seen: list[weakref.ref[BlockRecord]] = []

    for record in LedgerFile(path).valid_blocks():
        seen.append(weakref.ref(record))
        assert sum(ref() is not None for ref in seen) == 1

    assert len(seen) == 20


def test_file_that_is_only_read_stays_as_it_was_when_opened(path: Path) -> None:
    ledger = Ledger(path)
    ledger.append(block("b1"))
    file = LedgerFile(path)

    ledger.append(block("b2"))

    assert list(file.blocks()) == [block("b1")]
    assert not file.has(key_of(block("b2")))


def test_same_measurement_is_not_kept_twice(path: Path) -> None:
    ledger = Ledger(path)
    ledger.append(block(attempt=1))

    assert not ledger.append(block(attempt=2))
    assert not Ledger(path).append(block(attempt=3))
    assert len(path.read_bytes().splitlines()) == 1


def test_void_block_does_not_count_as_measured_and_can_be_measured_again(path: Path) -> None:
    ledger = Ledger(path)
    ledger.append(block(attempt=1, void_reason="1 of 8 requests failed"))

    assert not ledger.has(key_of(block()))
    assert ledger.valid_blocks() == []
    assert len(ledger.blocks()) == 1
    assert ledger.append(block(attempt=2))
    assert [record.attempt for record in Ledger(path).valid_blocks()] == [2]


def test_arm_is_measured_once_on_any_node_and_the_baseline_on_every_node() -> None:
    assert measurement_key("a", "b", "arm", "n1") == measurement_key("a", "b", "arm", "n2")
    assert measurement_key("a", "b", "opening", "n1") != measurement_key("a", "b", "opening", "n2")
    assert measurement_key("a", "b", "opening", "n1") != measurement_key("a", "b", "closing", "n1")


@given(cut=st.integers(min_value=1, max_value=len(block("b2").model_dump_json())))
def test_line_that_a_crash_tore_off_is_dropped_and_measured_again(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "ledger.jsonl"
    whole = Ledger(path)
    whole.append(block("b1"))
    whole.append(block("b2"))
    path.write_bytes(path.read_bytes()[: -1 - cut])

    torn = Ledger(path)

    assert [record.block_id for record in torn.valid_blocks()] == ["b1"]
    assert torn.append(block("b2"))
    assert content(Ledger(path)) == content(whole)


@pytest.mark.parametrize("damaged", [b"{}", b"not json", b"", b'{"kind": "blok"}', b'{"kind": "block"}'])
def test_damaged_line_in_the_middle_is_named_and_the_file_left_alone(path: Path, damaged: bytes) -> None:
    ledger = Ledger(path)
    for block_id in ("b1", "b2", "b3"):
        ledger.append(block(block_id))
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], damaged, lines[2], b""]))
    before = path.read_bytes()

    for kind in (Ledger, LedgerFile):
        with pytest.raises(LedgerError, match=r"ledger\.jsonl:2: "):
            kind(path)

    assert path.read_bytes() == before


def test_record_with_an_unknown_key_is_refused(path: Path) -> None:
    Ledger(path).append(block())
    path.write_bytes(path.read_bytes().replace(b'"attempt"', b'"atempt"'))

    with pytest.raises(LedgerError, match=r"ledger\.jsonl:1: "):
        Ledger(path)


def test_throughput_of_a_block_is_output_tokens_over_wall_time() -> None:
    assert block().output_tokens_per_s == 64.0


def test_record_that_a_full_disk_cut_short_leaves_nothing_torn_behind(path: Path) -> None:
    """A limit on the file's size fails as a full disk does: what fits is written."""
    ledger = Ledger(path)
    ledger.append(block(block_id="b1"))
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from orchestrator.ledger import Ledger; from tests.unit.test_ledger import block\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "path, limit = Path(sys.argv[1]), int(sys.argv[2])\n"
        "ledger = Ledger(path)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "try:\n    ledger.append(block(block_id='b2'))\nexcept OSError:\n    pass\n"
        "assert path.stat().st_size == limit\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "ledger.append(block(block_id='b3'))\n"
    )
    limit = str(path.stat().st_size + 50)
    subprocess.run([sys.executable, "-c", code, str(path), limit], check=True)

    assert [found.block_id for found in Ledger(path).blocks()] == ["b1", "b3"]
