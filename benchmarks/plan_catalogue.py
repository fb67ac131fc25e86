"""How long planning takes over every model x hardware profile x method with a drafter, without a network.

python -m benchmarks.plan_catalogue
"""

import sys
import time
from collections.abc import Iterator

from orchestrator.compose import compose, names_in
from orchestrator.config import Speculation, SweepConfig
from orchestrator.errors import ConfigError
from orchestrator.forecast import Forecast, forecast
from orchestrator.memory import Fit, require_fit
from orchestrator.past_times import PastTimes
from orchestrator.plan import PromptSet, plan_sweep
from orchestrator.records import Message, Prompt

NUM_PROMPTS = 64
SUPPOSED_GB_PER_S = 100.0
"""Of a profile that names no memory."""
GRID = (1, 3, 7)
"""k that every published drafter takes."""


def combinations() -> Iterator[SweepConfig]:
    """Every model x hardware profile, with every method the configuration knows that the model has a drafter for."""
    models = [compose([f"model={name}"]).model for name in names_in("model")]
    plain = [compose([f"hardware={name}", "server=xeon"]) for name in names_in("hardware")]
    for base in plain:
        for model in models:
            methods = [method for method in model.drafters if _is_known(method)]
            for method in methods or ["none"]:
                grid = GRID if methods else ()
                speculation = Speculation.model_validate({"method": method, "num_speculative_tokens": grid})
                yield base.model_copy(update={"model": model, "speculation": (speculation,)})


def verdict(config: SweepConfig) -> tuple[Fit, Forecast] | ConfigError:
    """What `plan` says of it: whether it fits and what it takes, or why it is refused."""
    prompts = tuple(Prompt(messages=(Message(role="user", content=f"prompt {i}"),)) for i in range(NUM_PROMPTS))
    sets = {name: PromptSet(prompts=prompts, num_read=NUM_PROMPTS, num_too_long=0) for name in config.datasets}
    try:
        need = require_fit(config)
        return need.fit, forecast(config, plan_sweep(config, sets), {}, PastTimes(), SUPPOSED_GB_PER_S)
    except ConfigError as error:
        return error


def main() -> None:
    """Print the seconds and how many of each verdict."""
    begun = time.perf_counter()
    found = [verdict(config) for config in combinations()]
    seconds = time.perf_counter() - begun
    refused = sum(isinstance(each, ConfigError) for each in found)
    sys.stdout.write(f"{len(found)} plans in {seconds:.1f} s: {len(found) - refused} planned, {refused} refused\n")


def _is_known(method: str) -> bool:
    try:
        Speculation.model_validate({"method": method, "num_speculative_tokens": GRID})
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
