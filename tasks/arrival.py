"""When an open loop sends each request. A function of the workload and the block alone, so the same for every arm."""

import random
from collections.abc import Sequence
from itertools import accumulate

from orchestrator.records import Prompt, WorkloadCell


def due_times_s(cell: WorkloadCell, block_index: int, prompts: Sequence[Prompt]) -> tuple[float, ...] | None:
    """Seconds from the block's start, one a prompt, the first 0; None in a closed loop.

    Poisson gaps are drawn from the sweep's seed, the same at every rate but for their scale.

    Raises:
        ValueError: arrival=log, and a prompt has no time of arrival.
    """
    if cell.arrival == "closed":
        return None
    if cell.arrival == "log":
        times = [prompt.arrival_s for prompt in prompts]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            raise ValueError(f"{cell.name}: arrival=log, but a prompt has no time of arrival")
        return tuple((time - known[0]) / float(cell.level) for time in known)
    if cell.arrival == "constant":
        return tuple(index / cell.level for index in range(len(prompts)))
    draw = random.Random(f"{cell.seed}/{cell.dataset}/{block_index}/arrival")
    gaps = [draw.expovariate(1.0) / cell.level for _ in prompts[1:]]
    return tuple(accumulate(gaps, initial=0.0))
