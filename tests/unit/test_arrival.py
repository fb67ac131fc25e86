"""When an open loop sends: a function of workload and block alone."""

from itertools import pairwise
from statistics import fmean

import pytest

from orchestrator.records import Message, Prompt, WorkloadCell
from tasks.arrival import due_times_s
from tests.unit.test_load import CELL

ASKED = Prompt(messages=(Message(role="user", content="hi"),))


def cell(arrival: str, **level: float) -> WorkloadCell:
    return WorkloadCell.model_validate(CELL.model_dump() | {"arrival": arrival, "max_concurrency": None, **level})


def due(workload: WorkloadCell, number: int, block_index: int = 0) -> tuple[float, ...]:
    times = due_times_s(workload, block_index, [ASKED] * number)
    assert times is not None
    return times


def test_closed_loop_has_no_times() -> None:
    assert due_times_s(CELL, 0, [ASKED]) is None


def test_constant_rate_spaces_requests_evenly() -> None:
    assert due(cell("constant", request_rate=4), 4) == (0, 0.25, 0.5, 0.75)


def test_poisson_gaps_have_the_mean_and_the_spread_of_their_rate() -> None:
    times = due(cell("poisson", request_rate=5), 4000)
    gaps = [after - before for before, after in pairwise(times)]

    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert fmean(gap**2 for gap in gaps) == pytest.approx(2 * 0.2**2, rel=0.1)


def test_poisson_times_are_the_blocks_own_the_seeds_and_otherwise_always_the_same() -> None:
    workload = cell("poisson", request_rate=5)

    assert due(workload, 9) == due(workload, 9) == due(workload, 20)[:9]
    assert due(workload, 9) != due(workload, 9, block_index=1)
    assert due(workload, 9) != due(workload.model_copy(update={"seed": 1}), 9)


def test_another_rate_only_stretches_the_times() -> None:
    slow, fast = due(cell("poisson", request_rate=1), 9), due(cell("poisson", request_rate=4), 9)

    assert [time / 4 for time in slow] == pytest.approx(fast)


def test_log_keeps_its_gaps_from_the_blocks_first_request_at_its_speed() -> None:
    prompts = [ASKED.model_copy(update={"arrival_s": at}) for at in (100.0, 100.5, 104.0)]

    assert due_times_s(cell("log", log_speed=1), 3, prompts) == (0, 0.5, 4)
    assert due_times_s(cell("log", log_speed=2), 3, prompts) == (0, 0.25, 2)


def test_log_without_times_is_refused() -> None:
    with pytest.raises(ValueError, match="a prompt has no time of arrival"):
        due_times_s(cell("log", log_speed=1), 0, [ASKED])
