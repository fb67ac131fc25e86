"""Reads the times of earlier sweeps from the results folder, and foresees what the next one takes."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from orchestrator.config import SweepConfig
from orchestrator.errors import ConfigError, LedgerError
from orchestrator.forecast import Forecast, Times, forecast
from orchestrator.past_times import PastTimes, past_times
from orchestrator.plan import Plan, PromptSet
from orchestrator.sweep_dir import SweepDir
from tasks.bandwidth import memory_bandwidth_gb_per_s

MOST_SWEEPS = 5
"""The newest that match: older ones ran on older engines."""


def foresee(config: SweepConfig, plan: Plan, prompts: Mapping[str, PromptSet]) -> Forecast:
    """What measuring `plan` takes, by earlier sweeps and, where they say nothing, by the roofline.

    Where the sweep runs on this machine and its profile names no memory, the bandwidth is measured here (0.5 s).

    Raises:
        ConfigError: there is not enough to go by.
    """
    return forecast(
        config, plan, _mean_lengths(prompts), read_past(config), _bandwidth_here(config), _log_spans(prompts)
    )


def foresee_times(config: SweepConfig, plan: Plan, prompts: Mapping[str, PromptSet]) -> Times | None:
    """What single visits and blocks take, from the same sources; None where there is not enough to go by."""
    past, bandwidth = read_past(config), _bandwidth_here(config)
    try:
        return Times(config, plan, _mean_lengths(prompts), past, bandwidth, _log_spans(prompts))
    except ConfigError:
        return None


def _bandwidth_here(config: SweepConfig) -> float | None:
    is_here = config.cluster.is_this_machine and config.hardware.memory_bandwidth_gb_per_s is None
    return memory_bandwidth_gb_per_s() if is_here else None


def read_past(config: SweepConfig) -> PastTimes:
    """Times of the newest sweeps in `results_dir` with the same model, precision, mode of execution and hardware."""
    return past_times(
        (sweep.sweep_id, sweep.plan(), ledger.valid_blocks(), ledger.visits())
        for sweep in _same(config)
        for ledger in [sweep.ledger()]
    )


def _same(config: SweepConfig) -> list[SweepDir]:
    folders = sorted(Path(config.results_dir).glob("*/*/plan.json"), key=lambda path: path.parent.name, reverse=True)
    found: list[SweepDir] = []
    for sweep in (SweepDir(path.parent) for path in folders):
        if len(found) < MOST_SWEEPS and _is_same(sweep, config):
            found.append(sweep)
    return found


def _is_same(sweep: SweepDir, config: SweepConfig) -> bool:
    try:
        other = sweep.config()
        is_same = _what_counts(other) == _what_counts(config)
        return is_same and bool(sweep.ledger().visits())
    except (ConfigError, LedgerError):
        return False  # written by another version: it cannot serve here, and no sweep needs it to


def _what_counts(config: SweepConfig) -> tuple[object, ...]:
    model = config.model
    return model.target, model.revision, model.dtype, config.server.enforce_eager, config.hardware.name


def _mean_lengths(prompts: Mapping[str, PromptSet]) -> dict[str, float]:
    counted = {
        name: [prompt.num_tokens for prompt in found.prompts if prompt.num_tokens is not None]
        for name, found in prompts.items()
    }
    return {name: fmean(lengths) for name, lengths in counted.items() if lengths}


def _log_spans(prompts: Mapping[str, PromptSet]) -> dict[str, float]:
    arrivals = {
        name: [prompt.arrival_s for prompt in found.prompts if prompt.arrival_s is not None]
        for name, found in prompts.items()
    }
    return {name: max(times) - min(times) for name, times in arrivals.items() if times}
