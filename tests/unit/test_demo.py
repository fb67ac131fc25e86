"""The shipped pair: names, prompts, the padded target and its cache, and the recipe run for a few steps."""

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3ForCausalLM

from orchestrator.errors import ConfigError
from tasks import demo
from tasks.demo.deep import cache_folder, cached_deep_target
from tasks.demo.recipe.__main__ import Recipe, make_pair
from tasks.demo.recipe.bf16 import read_bf16, to_bf16, write_bf16
from tasks.demo.recipe.corpus import REGIMES, format_prompt
from tasks.demo.recipe.dflash_model import DFlash
from tasks.demo.recipe.draft_blocks import IGNORED, block_mask, cut_blocks
from tasks.demo.recipe.padding import Padding, pad_target
from tasks.demo.recipe.pair import BLOCK_SIZE
from tasks.demo.recipe.prompts import draw_prompts
from tasks.demo.recipe.rollout import RolloutConfig, roll_out
from tasks.demo.recipe.train_drafter import DrafterTraining, TargetFeatures, draft_loss
from tasks.demo.recipe.train_target import TargetTraining

TARGET = Path(demo.resolve_model("demo://target"))
DRAFTER = Path(demo.resolve_model("demo://dflash"))
NARROW = Padding(intermediate_size=640)
OUTPUT_LEN, TRAINED_POSITIONS = 128, 256


def read_prompts(name: str) -> list[str]:
    path = Path(demo.resolve_data_file(f"demo://prompts/{name}.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(row.keys() == {"prompt"} for row in rows)
    return [row["prompt"] for row in rows]


@pytest.mark.parametrize("name", ["target", "dflash"])
def test_shipped_model_resolves_to_a_folder_with_weights(name: str) -> None:
    folder = Path(demo.resolve_model(f"demo://{name}"))
    assert (folder / "config.json").is_file()
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize("ref", ["Qwen/Qwen3-8B", "/models/x", "./target", "target", ""])
def test_other_references_come_back_unchanged(ref: str) -> None:
    assert demo.resolve_model(ref) == ref
    assert demo.resolve_data_file(ref) == ref


@pytest.mark.parametrize("ref", ["demo://tarjet", "demo://", "demo://../demo", "demo://prompts/code.jsonl"])
def test_unknown_demo_model_lists_the_known_ones(ref: str) -> None:
    with pytest.raises(ConfigError, match="demo://target, demo://dflash, demo://deep"):
        demo.resolve_model(ref)


@pytest.mark.parametrize("ref", ["demo://prompts/cod.jsonl", "demo://prompts/../__init__.py", "demo://target"])
def test_unknown_demo_data_file_lists_the_known_ones(ref: str) -> None:
    with pytest.raises(ConfigError, match=r"demo://prompts/code\.jsonl"):
        demo.resolve_data_file(ref)


def test_importing_the_demo_loads_neither_torch_nor_numpy() -> None:
    check = "import sys, tasks.demo; sys.exit(bool({'torch', 'numpy', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_padding_needs_no_torch(tmp_path: Path) -> None:
    check = (
        "import sys; from pathlib import Path; from tasks.demo.deep import cached_deep_target as build;"
        "from tasks.demo.recipe.padding import Padding;"
        f"build(Path({str(TARGET)!r}), Padding(640), Path({str(tmp_path)!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("regime", list(REGIMES))
def test_prompts_are_distinct_and_fit_the_trained_positions(regime: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    prompts = read_prompts(regime)
    assert len(prompts) == 256
    assert len(set(prompts)) == 256
    for prompt in prompts:
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        assert text == format_prompt(prompt)
        assert len(tokenizer(text)["input_ids"]) + OUTPUT_LEN < TRAINED_POSITIONS


@pytest.mark.parametrize("regime", list(REGIMES))
def test_shipped_prompts_are_what_the_recipe_draws(regime: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    drawn = draw_prompts(regime, 256, lambda p: len(tokenizer(format_prompt(p))["input_ids"]), TRAINED_POSITIONS)
    assert drawn == read_prompts(regime)


def test_a_grammar_that_runs_dry_is_an_error() -> None:
    with pytest.raises(ValueError, match="asked for 2 distinct prompts, but got 0"):
        draw_prompts("chat", 2, lambda _: TRAINED_POSITIONS, TRAINED_POSITIONS)


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.0, 0.0], np.float32)
    assert [hex(bits) for bits in to_bf16(values)] == ["0x3f80", "0x3f80", "0x3f82", "0xc000", "0x0"]


def test_bfloat16_file_reads_back_as_written(tmp_path: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.uint16).reshape(2, 3), "b": np.array([1], np.uint16)}
    write_bf16(tmp_path / "x.safetensors", tensors)
    read = read_bf16(tmp_path / "x.safetensors")
    assert read.keys() == tensors.keys()
    assert all(np.array_equal(read[name], tensors[name]) for name in tensors)


def test_padding_adds_weights_that_contribute_zero(tmp_path: Path) -> None:
    num_parameters = pad_target(TARGET, tmp_path, NARROW)
    small, padded = read_bf16(TARGET / "model.safetensors"), read_bf16(tmp_path / "model.safetensors")
    assert padded.keys() == small.keys()
    assert num_parameters == sum(tensor.size for tensor in padded.values())
    for name, tensor in small.items():
        rows = tensor.shape[0]
        if "gate_proj" in name or "up_proj" in name:
            assert np.array_equal(padded[name][:rows], tensor)
            assert padded[name][rows:].any()
        elif "down_proj" in name:
            assert np.array_equal(padded[name][:, : tensor.shape[1]], tensor)
            assert not padded[name][:, tensor.shape[1] :].any()
        else:
            assert np.array_equal(padded[name], tensor)


def test_padding_changes_one_number_of_the_config_and_no_other_file(tmp_path: Path) -> None:
    pad_target(TARGET, tmp_path, NARROW)
    expected = json.loads((TARGET / "config.json").read_text()) | {"intermediate_size": 640}
    assert json.loads((tmp_path / "config.json").read_text()) == expected
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in TARGET.iterdir()}
    assert (tmp_path / "tokenizer.json").read_bytes() == (TARGET / "tokenizer.json").read_bytes()


def test_default_padding_gives_about_100_million_parameters() -> None:
    small = read_bf16(TARGET / "model.safetensors")
    rows = {name: tensor.shape[0] for name, tensor in small.items() if "gate_proj" in name}
    added = sum(3 * 256 * (Padding().intermediate_size - row) for row in rows.values())
    assert 95e6 < sum(tensor.size for tensor in small.values()) + added < 105e6


def test_padding_narrower_than_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least the model's 512, but got 256"):
        pad_target(TARGET, tmp_path, Padding(intermediate_size=256))


def test_second_request_takes_the_cached_target(tmp_path: Path) -> None:
    first = cached_deep_target(TARGET, NARROW, tmp_path)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert cached_deep_target(TARGET, NARROW, tmp_path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written


def test_other_sizes_get_another_folder(tmp_path: Path) -> None:
    assert cached_deep_target(TARGET, NARROW, tmp_path) != cached_deep_target(TARGET, Padding(768), tmp_path)


def build_in_a_process(cache: Path, before: str = "") -> int:
    """Exit code of a process that builds the narrow padded target, after running `before`."""
    code = (
        "import os, sys; from pathlib import Path; import tasks.demo.recipe.padding as padding;"
        f"{before}\nfrom tasks.demo.deep import cached_deep_target\n"
        f"cached_deep_target(Path({str(TARGET)!r}), padding.Padding(640), Path({str(cache)!r}))"
    )
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_processes_that_build_at_once_get_one_complete_target(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(build_in_a_process, [tmp_path] * 3)) == [0, 0, 0]
    folders = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert folders == [cached_deep_target(TARGET, NARROW, tmp_path)]
    assert read_bf16(folders[0] / "model.safetensors")


def test_a_build_waits_for_the_one_under_way(tmp_path: Path) -> None:
    final = cached_deep_target(TARGET, NARROW, tmp_path)
    moved = final.rename(tmp_path / "moved")
    with ThreadPoolExecutor(1) as pool:
        with FileLock(f"{final}.lock"):
            waiting = pool.submit(cached_deep_target, TARGET, NARROW, tmp_path)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.5)
            moved.rename(final)  # the build under way is done: the waiting one must take this, not build again
            written = final.stat().st_ino
        assert waiting.result() == final
    assert final.stat().st_ino == written


def test_a_killed_build_is_not_taken_for_a_target(tmp_path: Path) -> None:
    killed = build_in_a_process(tmp_path, "padding.write_bf16 = lambda path, _: os.kill(os.getpid(), 9)")
    assert killed == -9
    assert [path.suffix for path in tmp_path.iterdir() if path.is_dir()] == [".building"]
    final = cached_deep_target(TARGET, NARROW, tmp_path)
    assert read_bf16(final / "model.safetensors")
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [final]


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        cached_deep_target(TARGET, NARROW, blocker / "cache")


def test_cache_is_under_xdg_cache_home_if_that_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "specsweep"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == tmp_path / ".cache" / "specsweep"


def test_block_mask_shows_context_before_the_anchor_and_the_own_block_up_to_its_length() -> None:
    anchors = torch.tensor([[3, 5]])
    in_block = (torch.arange(BLOCK_SIZE) < 4).repeat(2)[None]
    mask = block_mask(anchors, 10, in_block)[0]
    second_block_last_used = mask[BLOCK_SIZE + 3]
    assert second_block_last_used[:10].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    assert second_block_last_used[10:].nonzero().flatten().tolist() == [BLOCK_SIZE + i for i in range(4)]
    beyond_length = mask[BLOCK_SIZE + 9]
    assert beyond_length[10:].nonzero().flatten().tolist() == [BLOCK_SIZE + i for i in (0, 1, 2, 3, 9)]


def test_blocks_hold_the_anchor_then_masks_and_are_labelled_with_what_the_target_said() -> None:
    tokens, mask_token_id, prompt_len = torch.arange(100, 164)[None], 4, 20
    blocks = cut_blocks(tokens, prompt_len, 5, mask_token_id, torch.Generator().manual_seed(0))
    by_block = blocks.token_ids[0].view(5, BLOCK_SIZE)
    assert by_block[:, 0].min() >= 100 + prompt_len
    assert (by_block[:, 1:] == mask_token_id).all()
    labels, positions = blocks.labels[0], blocks.plan.query_positions[0]
    counted = labels != IGNORED
    assert (labels[counted] == positions[counted] + 100).all()
    assert not counted.view(5, BLOCK_SIZE)[:, 0].any()
    assert counted.view(5, BLOCK_SIZE)[:, 1].all()
    weights = blocks.loss_weights[0, :BLOCK_SIZE].tolist()
    assert weights[1] == 1.0
    assert weights[8] == pytest.approx(np.exp(-1))


def test_recipe_drafter_computes_what_the_shipped_weights_were_trained_for() -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    target = Qwen3ForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    rollout = roll_out(target, tokenizer, RolloutConfig(1, 6, 192), random.Random(0), generator)[0]
    blocks = cut_blocks(rollout.tokens, rollout.prompt_len, 12, 4, generator)
    drafter = DFlash()
    drafter.load_state_dict(load_file(DRAFTER / "model.safetensors"))
    with TargetFeatures(target) as features, torch.no_grad():
        loss = draft_loss(drafter, features.of(rollout.tokens), blocks, target.model.embed_tokens.weight)
    assert loss.item() < 1.0  # an untrained drafter has ln(1536) = 7.3


def test_recipe_makes_a_pair_of_the_shipped_kind(tmp_path: Path) -> None:
    rollout = RolloutConfig(num_batches=1, rows_per_batch=4, seq_len=128)
    recipe = Recipe(
        tokenizer_documents=300,
        target=TargetTraining(num_steps=2, batch_size=2, seq_len=64),
        drafter=DrafterTraining(num_steps=2, batch_size=2, blocks_per_row=4, rollout=rollout),
        num_prompts=4,
    )
    make_pair(tmp_path, recipe)
    for shipped in (TARGET, DRAFTER):
        made = tmp_path / shipped.name
        assert {path.name for path in made.iterdir()} == {path.name for path in shipped.iterdir()}
        assert json.loads((made / "config.json").read_text()) == json.loads((shipped / "config.json").read_text())
        old, new = read_bf16(shipped / "model.safetensors"), read_bf16(made / "model.safetensors")
        assert {name: tensor.shape for name, tensor in new.items()} == {
            name: tensor.shape for name, tensor in old.items()
        }
    assert sorted(path.name for path in (tmp_path / "prompts").iterdir()) == ["chat.jsonl", "code.jsonl", "math.jsonl"]
