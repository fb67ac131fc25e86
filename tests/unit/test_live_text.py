"""The live view fits the terminal, and what it cuts is the least important."""

import io

import pytest
from rich.console import Console

from orchestrator.leaders import Leader, LeftOut
from orchestrator.live import Live, RunningVisit
from orchestrator.live_text import live_view, progress_text
from orchestrator.selection import Interval

NOTHING = "predicted to gain nothing worth its time"


def leader(workload: str, left_out: tuple[LeftOut, ...] = (), arm: str | None = "dflash-k15") -> Leader:
    return Leader(
        workload=workload,
        arm=arm,
        speedup=Interval(mean=2.31, ci_low=2.05, ci_high=2.58) if arm else None,
        verdict="speculate" if arm else "undecided",
        num_measured=2,
        left_out=left_out,
        dropped={"dflash-k1": "clearly worse", "dflash-k3": "clearly worse", "ngram-k2": NOTHING},
    )


def left_out(arm: str, mean: float, why: str) -> LeftOut:
    return LeftOut(arm=arm, speedup=Interval(mean=mean, ci_low=mean, ci_high=mean), why=why)


def running(node: str, last: str = "code@c1 block 3: 1,240 tokens/s") -> RunningVisit:
    return RunningVisit(
        node=node,
        arm="dflash-k15",
        phase="arm",
        num_done=3,
        num_blocks=30,
        started_utc="2026-08-01T10:00:00+00:00",
        last=last,
    )


def live(num_nodes: int = 1, num_workloads: int = 6, **changes: object) -> Live:
    state = Live(
        updated_utc="2026-08-01T10:00:00+00:00",
        running=tuple(running(f"node-{at}") for at in range(num_nodes)),
        num_done=120,
        num_blocks=1800,
        is_at_most=True,
        left_s=4000,
        at_most_left_s=12_000,
        node_hours=1,
        usd=1.784,
        leaders=tuple(leader(f"code@c{at}") for at in range(num_workloads)),
    )
    return state.model_copy(update=changes)


def lines(state: Live, width: int, height: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width, height=height, no_color=True)
    out.print(live_view(state, width=width, height=height))
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (60, 24), (60, 10), (200, 60)])
@pytest.mark.parametrize(("num_nodes", "num_workloads"), [(1, 6), (40, 6), (1, 40), (40, 40)])
def test_it_fits_and_how_far_it_is_comes_first_and_whole(
    width: int, height: int, num_nodes: int, num_workloads: int
) -> None:
    shown = lines(live(num_nodes, num_workloads), width, height)
    assert len(shown) <= height
    assert max(map(len, shown)) <= width - len("^C")
    assert shown[0].endswith("120 of at most 1800 blocks")
    assert shown[1] == "about 1 h 07 min left, at most 3 h 20 min; 1.78 USD so far"
    assert shown[2].split()[:4] == ["node-0", "dflash-k15", "arm", "3/30"]


def test_what_has_no_room_is_counted() -> None:
    shown = lines(live(40, 40), 80, 24)
    assert [line.strip() for line in shown if line.strip().startswith("and")] == ["and 30 more", "and 34 more"]


@pytest.mark.parametrize("width", [80, 60])
def test_a_workload_is_one_line_however_many_arms_are_dropped(width: int) -> None:
    rows = [line for line in lines(live(), width, 24) if line.strip().startswith("code@c")]
    assert len(rows) == 6
    assert all("dflash-k15" in row and "2.31 [2.05, 2.58]  speculate" in row for row in rows)
    assert all(("dflash-k1,3: clearly" in row) == (width == 80) for row in rows)


def test_arms_that_may_not_be_chosen_come_after_the_candidate_with_the_reason() -> None:
    ahead = left_out("dflash-k7", 3.4, "is left out: 2 of at least 3 valid blocks")
    behind = left_out("dflash-k3", 1.2, "breaks ttft_p95_s=0.5 with 0.71")
    state = live(leaders=(leader("code@c1", (ahead, behind)), leader("chat@c1", (behind,), arm=None)))
    shown = [line.strip() for line in lines(state, 110, 24)]
    at = next(at for at, line in enumerate(shown) if line.startswith("code@c1   dflash-k15"))
    assert shown[at + 1].split(maxsplit=5) == [
        *("dflash-k7", "3.40", "[3.40,", "3.40]", "left"),
        "out   2 of at least 3 valid blocks",
    ]
    assert shown[at + 2].startswith("chat@c1   \N{EN DASH}")
    assert shown[at + 3].startswith("dflash-k3")
    assert shown[at + 3].endswith("left out   breaks ttft_p95_s=0.5 with 0.71")
    assert not any(line.startswith("dflash-k3") for line in shown[at + 1 : at + 3]), "slower than the candidate"


def test_left_out_arms_give_way_where_there_is_no_room() -> None:
    arms = tuple(left_out(f"dflash-k{k}", 9.0, "breaks something") for k in (1, 2))
    state = live(leaders=tuple(leader(f"code@c{at}", arms) for at in range(8)))
    shown = lines(state, 100, 15)
    assert len(shown) <= 15
    assert sum("code@c" in line and "2.31" in line for line in shown) == 8


def test_the_line_of_a_log_says_it_all_at_once() -> None:
    assert progress_text(live()) == (
        "120 of at most 1800 blocks, about 1 h 07 min left (at most 3 h 20 min); 1.78 USD so far"
    )
    exact = live(is_at_most=False, left_s=83.2, at_most_left_s=83.2, usd=None)
    assert progress_text(exact) == "120 of 1800 blocks, about 1 min 23 s left"
