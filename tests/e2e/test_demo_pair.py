"""The demo pair on the real engine, in a process of its own so that neither environment nor state leaks.

Run as a script (`python tests/e2e/test_demo_pair.py OUT.json`) this file is that process.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.demo import resolve_data_file, resolve_model

pytestmark = pytest.mark.engine

REGIMES = ("code", "math", "chat")
MODELS = ("target", "deep")
NUM_SPECULATIVE_TOKENS = 7
NUM_PROMPTS = 4
OUTPUT_LEN = 96
ENGINE_ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """`<model>-<k>` -> regime -> {token_ids, acceptance_length}."""
    folder = tmp_path_factory.mktemp("demo-pair")
    out, log = folder / "measured.json", folder / "engine.log"
    env = os.environ | ENGINE_ENV | {"XDG_CACHE_HOME": str(folder / "cache")}
    with log.open("w") as stream:
        done = subprocess.run(
            [sys.executable, __file__, str(out)], env=env, stdout=stream, stderr=subprocess.STDOUT, check=False
        )
    assert done.returncode == 0, log.read_text()[-4000:]
    yield json.loads(out.read_text())
    shutil.rmtree(folder / "cache")  # 200 MB that pytest would keep


def _has_amx() -> bool:
    return "amx_tile" in Path("/proc/cpuinfo").read_text()


@pytest.mark.skipif(_has_amx(), reason="on AMX, vLLM multiplies the small target's matrices by another kernel")
@pytest.mark.parametrize("regime", REGIMES)
def test_padded_target_says_what_the_target_says(measured: dict[str, Any], regime: str) -> None:
    assert measured["deep-0"][regime]["token_ids"] == measured["target-0"][regime]["token_ids"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("regime", REGIMES)
def test_speculation_leaves_the_output_unchanged(measured: dict[str, Any], model: str, regime: str) -> None:
    with_drafts = measured[f"{model}-{NUM_SPECULATIVE_TOKENS}"][regime]["token_ids"]
    assert with_drafts == measured[f"{model}-0"][regime]["token_ids"]


@pytest.mark.parametrize("model", MODELS)
def test_drafter_is_good_at_code_and_bad_at_chat(measured: dict[str, Any], model: str) -> None:
    by_regime = measured[f"{model}-{NUM_SPECULATIVE_TOKENS}"]
    assert by_regime["code"]["acceptance_length"] > 4
    assert by_regime["chat"]["acceptance_length"] < 2


@pytest.mark.parametrize("regime", REGIMES)
def test_drafter_works_on_the_padded_target_as_on_the_target(measured: dict[str, Any], regime: str) -> None:
    small, deep = (measured[f"{model}-{NUM_SPECULATIVE_TOKENS}"][regime]["acceptance_length"] for model in MODELS)
    assert deep == pytest.approx(small, rel=0.1)


def _measure(model: str, num_speculative_tokens: int) -> dict[str, Any]:
    """Greedy answers and acceptance per regime, on one engine."""
    from vllm import LLM, SamplingParams

    speculation = {
        "method": "dflash",
        "model": resolve_model("demo://dflash"),
        "num_speculative_tokens": num_speculative_tokens,
    }
    llm = LLM(
        resolve_model(f"demo://{model}"),
        max_model_len=1024,
        max_num_seqs=NUM_PROMPTS,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=speculation if num_speculative_tokens else None,
    )
    sampling = SamplingParams(temperature=0, max_tokens=OUTPUT_LEN, ignore_eos=True)
    results = {}
    for regime in REGIMES:
        lines = Path(resolve_data_file(f"demo://prompts/{regime}.jsonl")).read_text().splitlines()[:NUM_PROMPTS]
        chats = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
        before = _counters(llm)
        outputs = llm.chat(chats, sampling, use_tqdm=False)
        drafts, accepted = (after - start for after, start in zip(_counters(llm), before, strict=True))
        results[regime] = {
            "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
            "acceptance_length": 1 + accepted / drafts if drafts else None,
        }
    return results


def _counters(llm: Any) -> tuple[int, int]:
    """Drafts and accepted tokens so far; 0 without speculation."""
    values = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    names = ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens")
    return values.get(names[0], 0), values.get(names[1], 0)


def _main(out: Path) -> None:
    measured = {f"{model}-{k}": _measure(model, k) for model in MODELS for k in (0, NUM_SPECULATIVE_TOKENS)}
    out.write_text(json.dumps(measured))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
