"""Seconds per output token from the roofline of model and hardware: before anything was measured. Pure.

A step of a memory-bound model takes as long as reading the weights it uses. Every further token of the step (other
requests, drafts) costs some arithmetic, and in a mixture of experts the experts that no earlier token had asked for.
What is not known is a range from a good machine and prompts that draft well to a poor one and prompts that draft badly.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isclose, sqrt

from orchestrator.config import Drafter, Model
from orchestrator.memory import weights_gb
from orchestrator.methods import METHODS

OF_PEAK = (0.25, 0.8)
"""What a step reads per second, as a share of the peak of all channels that a hardware profile gives. Suppositions: no
program reaches the peak, and an instance may own only a part of its socket's memory."""
OF_COPIES = (0.6, 1.4)
"""The same against what a node's probe copied, which counts bytes written, too: demo_deep's baseline read 11 to 20 GB/s
on two cores that copied 10 to 15 GB/s."""
GROWTH_PER_TOKEN = (0.01, 0.09)
"""Time of each further token of a step, as a share of a step with one: 0.07 to 0.08 on two AVX-512 cores (demo_deep: 1,
4 and 16 streams, k = 3 to 15); less where AMX does the arithmetic, which was not measured."""
STEP_OVERHEAD_S = (0.001, 0.004)
"""The engine's own time a step: the demo target, whose weights are nothing, takes 1 to 2 ms a step on two cores."""
DRAFTER_SHARE = (0.05, 0.2)
"""A drafter's weights as a share of what the target reads, where its size is not known."""
ACCEPTANCE = (0.4, 0.85)
"""Chance that a drafted token is accepted once those before it are, on average over a sweep's datasets: with k = 15 it
gives 1.7 to 6.2 tokens a step. The demo's three give 2.7 together (code 10, math 4.4, chat 1.3), HumanEval as published
6.9."""


@dataclass(frozen=True)
class Range:
    """From the least to the most, of any unit."""

    low: float
    high: float

    def scaled(self, factor: float) -> "Range":
        return Range(self.low * factor, self.high * factor)

    @property
    def middle(self) -> float:
        """As many times the least as the most is times it: the ends may lie far apart."""
        return sqrt(self.low * self.high)


def total(parts: Iterable[Range]) -> Range:
    """The sum: 0 for no part."""
    items = list(parts)
    return Range(sum(part.low for part in items), sum(part.high for part in items))


@dataclass(frozen=True)
class Roofline:
    """Time of a token on one kind of node."""

    model: Model
    drafter: Drafter | None
    method: str
    reads_gb_per_s: Range

    def token_s(self, k: int, max_concurrency: int, output_len: int, prompt_len: float) -> Range:
        """Wall seconds per output token of a closed loop at `max_concurrency` with `k` drafted tokens (0: none)."""
        fast, slow = (self._token_s(k, max_concurrency, output_len, prompt_len, case) for case in (0, 1))
        return Range(fast, slow)

    def _token_s(self, k: int, streams: int, output_len: int, prompt_len: float, case: int) -> float:
        """`case` 0 is the fastest that can be expected, 1 the slowest."""
        reads_per_s = (self.reads_gb_per_s.high, self.reads_gb_per_s.low)[case]
        one_token_s = read_gb(self.model, 1) / reads_per_s
        growth_s = GROWTH_PER_TOKEN[case] * one_token_s
        tokens = streams * (k + 1)
        step_s = read_gb(self.model, tokens) / reads_per_s + growth_s * (tokens - 1) + STEP_OVERHEAD_S[case]
        step_s += self._draft_gb(k, case) / reads_per_s
        return step_s / (streams * tokens_per_step(k, ACCEPTANCE[1 - case])) + growth_s * prompt_len / output_len

    def _draft_gb(self, k: int, case: int) -> float:
        """What the drafter reads in one step."""
        passes = METHODS[self.method].passes
        if k == 0 or passes == "none":
            return 0.0
        known = self.drafter.weight_gb if self.drafter else None
        once = read_gb(self.model, 1) * DRAFTER_SHARE[case] if known is None else known
        return once * (k if passes == "each" else 1)


def read_gb(model: Model, num_tokens: int) -> float:
    """Weights that a step over `num_tokens` reads, 10^9 bytes. `model`'s weights must be known.

    The whole checkpoint counts, though decoding reads no picture encoder and few rows of the input embeddings: that is
    less than what is not known of the bandwidth.
    In a mixture of experts every token is supposed to choose its share of the weights independently of the others, so
    that n tokens leave (1 - share)^n of them untouched.
    """
    total = weights_gb(model)
    if total is None:
        raise ValueError(f"the weights of model {model.name!r} are not known")
    if model.active_parameters_billion is None or model.parameters_billion is None:
        return total
    untouched = 1 - model.active_parameters_billion / model.parameters_billion
    return float(total * (1 - untouched**num_tokens))


def tokens_per_step(k: int, acceptance: float) -> float:
    """Mean acceptance length with `k` drafted tokens, each accepted with the same chance after those before it."""
    if isclose(acceptance, 1):
        return k + 1
    return float((1 - acceptance ** (k + 1)) / (1 - acceptance))
