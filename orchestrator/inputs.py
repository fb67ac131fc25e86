"""What planning takes from outside: the datasets' prompts, and this machine's memory."""

from orchestrator.config import SweepConfig
from orchestrator.plan import PromptSet, prompt_sets
from tasks.host import probe_node
from tasks.prompts import load_prompt_set, tokenizer_count, use_cache_without_network


def load_prompts(config: SweepConfig) -> dict[str, PromptSet]:
    """Every dataset's usable prompts, counted by the target's tokenizer and cut into buckets by that.

    Raises:
        PromptsUnavailable: a dataset or the tokenizer cannot be had.
    """
    use_cache_without_network(config.model, config.datasets.values())
    count = tokenizer_count(config.model)
    room = config.model.max_model_len - config.workload.output_len
    found = {
        name: load_prompt_set(
            name,
            dataset,
            count=count,
            max_prompt_tokens=room,
            output_len=config.workload.output_len,
            seed=config.seed,
        )
        for name, dataset in config.datasets.items()
    }
    return prompt_sets(config, found)


def memory_here(config: SweepConfig) -> float | None:
    """This machine's memory, 10^9 bytes, where the sweep runs on it; None on a cluster, whose profile has to say it."""
    return probe_node().memory_gb if config.cluster.is_this_machine else None
