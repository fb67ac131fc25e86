"""What the published figures of DFlash on a Xeon mean in dollars, by this project's own formulas.

    python -m benchmarks.published_case

Published for Qwen3.5-9B on an r8i.16xlarge, one stream, 128 output tokens: 3.92x mean speedup, 74.40 % cheaper per
token; for HumanEval 381 steps, 5,715 drafted and 2,261 accepted tokens. Tokens/s and the speedups of the other datasets
are not known here, so dollars are given per baseline throughput.
"""

import sys
from math import sqrt

from orchestrator.compose import compose
from orchestrator.memory import weights_gb
from orchestrator.metrics import acceptance_length, acceptance_rate, saving, usd_per_million_output_tokens
from orchestrator.records import SpecCounters

HUMANEVAL = SpecCounters(
    num_drafts=381,
    num_draft_tokens=5715,
    num_accepted_tokens=2261,
    # Published are the ends: 327 at position 0, 45 at 14. Between them is what is left.
    num_accepted_tokens_per_pos=(327, 149, *([145] * 12), 45),
)
MEAN_SPEEDUP = 3.92
SAVING = 0.7440
BASELINES_TOKENS_PER_S = (5.0, 10.0, 20.0, 30.0)


def bound_tokens_per_s() -> float:
    """The baseline's roofline: one step reads all weights at the peak of all memory channels."""
    config = compose(["sweep=xeon_dflash"])
    weights, bandwidth = weights_gb(config.model), config.hardware.memory_bandwidth_gb_per_s
    assert weights is not None
    assert bandwidth is not None
    return bandwidth / weights


def harmonic_mean_speedup(mean_saving: float) -> float:
    """The mean of savings 1 - 1/s is 1 - 1/h, h the harmonic mean of the speedups."""
    return 1 / (1 - mean_saving)


def spread(mean: float, harmonic: float) -> float:
    """Standard deviation of speedups with these two means, to second order: mean - harmonic = variance / mean."""
    return sqrt(max(0.0, mean - harmonic) * mean)


def steps_per_baseline_step(speedup: float) -> float:
    """What one step with k = 15 takes, in steps of the baseline, where HumanEval's speedup is `speedup`."""
    length = acceptance_length(HUMANEVAL)
    assert length is not None
    return length / speedup


def main() -> None:
    """Print the tables of docs/results/published_case.md."""
    usd_per_hour = compose(["sweep=xeon_dflash"]).hardware.usd_per_hour
    assert usd_per_hour is not None
    out = sys.stdout.write
    out(
        "| baseline, tokens/s | USD per 1M output tokens | with 3.92x | saved per 1M |\n| ---: | ---: | ---: | ---: |\n"
    )
    for rate in (*BASELINES_TOKENS_PER_S, bound_tokens_per_s()):
        before, after = (usd_per_million_output_tokens(usd_per_hour, rate * factor) for factor in (1, MEAN_SPEEDUP))
        out(f"| {rate:.1f} | {before:.2f} | {after:.2f} | {before - after:.2f} |\n")
    out(f"\nsaving at the mean speedup: {100 * saving(MEAN_SPEEDUP):.2f} %\n")
    harmonic = harmonic_mean_speedup(SAVING)
    out(f"74.40 % as a mean of savings: harmonic mean speedup {harmonic:.3f}, arithmetic {MEAN_SPEEDUP}; ")
    low, high = (
        spread(MEAN_SPEEDUP + sign * 0.005, harmonic_mean_speedup(SAVING - sign * 0.00005)) for sign in (-1, 1)
    )
    out(f"spread of the speedups {spread(MEAN_SPEEDUP, harmonic):.2f} ({low:.2f} to {high:.2f} within rounding)\n")
    accepted, length = acceptance_rate(HUMANEVAL) or 0, acceptance_length(HUMANEVAL)
    out(f"HumanEval: acceptance rate {100 * accepted:.2f} %, acceptance length {length:.2f}; ")
    out(f"a step of k = 15 takes {steps_per_baseline_step(MEAN_SPEEDUP):.2f} baseline steps if its speedup is 3.92\n")


if __name__ == "__main__":
    main()
