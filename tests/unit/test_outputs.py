"""Outputs at temperature 0: how many equal the baseline's, where the others part, and the reason that can be known."""

from collections.abc import Iterable, Mapping, Sequence

import pytest

from orchestrator.outputs import OutputMatch, compare_outputs, first_difference
from orchestrator.plan import Plan
from orchestrator.records import Arm, BlockRecord, Phase, RawRequest
from tests.unit.builders import block_record, make_plan

SAID = (5, 6, 7, 8)
"""What the baseline says."""


class Sweep:
    """One workload of four blocks of two prompts, measured block by block with the outputs given."""

    def __init__(self, *, temperature: float = 0.0, dtype: str = "bfloat16", num_blocks: int = 4) -> None:
        plan = make_plan((1, 7), temperature=temperature, num_blocks=num_blocks)
        arms = (arm.model_copy(update={"server": arm.server.model_copy(update={"dtype": dtype})}) for arm in plan.arms)
        self.plan: Plan = plan.model_copy(update={"arms": tuple(arms)})
        self.blocks: list[BlockRecord] = []
        self.raw: dict[str, list[RawRequest]] = {}
        self.read: list[str] = []

    def say(
        self, arm: Arm, outputs: Mapping[int, Sequence[int]], *, phase: Phase | None = None, node: str = "a"
    ) -> None:
        """Measure every block; prompt number (over all blocks) -> what is said there instead of SAID."""
        for block in self.plan.blocks:
            numbers = range(2 * block.index, 2 * block.index + 2)
            said = [tuple(outputs.get(number, SAID)) for number in numbers]
            record = block_record(
                self.plan, arm, block, phase=phase, node=node, output_sha256=tuple(str(ids) for ids in said)
            )
            self.blocks.append(record)
            self.raw.setdefault(record.visit_id, []).extend(
                RawRequest(prompt_index=index, sent_s=0, end_s=1, block_id=block.id, output_token_ids=ids)
                for index, ids in zip(block.prompt_indices, said, strict=True)
            )

    def compare(self) -> dict[str, OutputMatch]:
        return {match.arm.name: match for match in compare_outputs(self.plan, self.blocks, self._read)}

    def _read(self, visit_id: str) -> Iterable[RawRequest]:
        self.read.append(visit_id)
        return iter(self.raw.get(visit_id, ()))


def repeating(sweep: Sweep) -> Sweep:
    """With a baseline that says the same twice."""
    sweep.say(sweep.plan.baseline, {})
    sweep.say(sweep.plan.baseline, {}, phase="closing")
    return sweep


def test_identical_outputs_need_no_raw_file() -> None:
    sweep = repeating(Sweep())
    sweep.say(sweep.plan.arms[1], {})

    found = sweep.compare()

    assert [(match.num_prompts, match.num_different, match.reason) for match in found.values()] == [(8, 0, None)] * 2
    assert found["dflash-k1"].identical_share == 1
    assert found["dflash-k1"].first_position is None
    assert sweep.read == []


def test_share_and_first_difference_are_those_of_the_prompts_that_differ() -> None:
    sweep = repeating(Sweep())
    sweep.say(sweep.plan.arms[1], {0: (5, 6, 0, 0), 3: (5, 0, 7, 8), 4: (0, 6, 7, 8)})
    sweep.say(sweep.plan.arms[2], {})

    found = sweep.compare()

    assert found["dflash-k1"].identical_share == 5 / 8
    assert found["dflash-k1"].positions == {0: 1, 1: 1, 2: 1}
    assert (found["dflash-k1"].first_position, found["dflash-k1"].median_position) == (0, 1)
    assert found["dflash-k7"].num_different == 0
    assert sorted(sweep.read) == ["dflash-k1-arm-a", "none-opening-a"]


@pytest.mark.parametrize(
    ("ours", "theirs", "position"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (1,), 0), ((), (), None)],
)
def test_first_difference(ours: Sequence[int], theirs: Sequence[int], position: int | None) -> None:
    assert first_difference(ours, theirs) == first_difference(theirs, ours) == position


def test_baseline_is_compared_with_itself_and_an_arm_with_the_opening_of_its_own_node() -> None:
    sweep = Sweep()
    elsewhere = dict.fromkeys(range(8), (1, 1, 1, 1))
    sweep.say(sweep.plan.arms[1], elsewhere, node="b")  # whatever order they come in
    for node, outputs in (("a", {}), ("b", elsewhere)):
        sweep.say(sweep.plan.baseline, outputs, node=node, phase="closing")
        sweep.say(sweep.plan.baseline, outputs | {0: (5, 6, 7, 0)}, node=node, phase="opening")

    found = sweep.compare()

    assert (found["none"].num_prompts, found["none"].num_different) == (16, 2)
    assert found["none"].positions == {3: 1, 0: 1}
    assert (found["dflash-k1"].num_prompts, found["dflash-k1"].num_different) == (8, 1)


def test_sampled_outputs_are_not_compared() -> None:
    sweep = repeating(Sweep(temperature=0.7))
    sweep.say(sweep.plan.arms[1], {0: (0,)})

    assert sweep.compare() == {}


def test_without_token_ids_the_share_is_known_and_the_position_is_not() -> None:
    sweep = repeating(Sweep())
    sweep.say(sweep.plan.arms[1], {0: (5, 0)})
    sweep.raw = {
        visit_id: [request.model_copy(update={"output_token_ids": None}) for request in requests]
        for visit_id, requests in sweep.raw.items()
    }

    match = sweep.compare()["dflash-k1"]

    assert (match.num_different, match.positions, match.median_position) == (1, {}, None)
    assert match.reason


def test_without_a_raw_file_the_share_is_known_and_the_position_is_not() -> None:
    sweep = repeating(Sweep())
    sweep.say(sweep.plan.arms[1], {0: (5, 0)})
    del sweep.raw["none-opening-a"]

    assert (sweep.compare()["dflash-k1"].num_different, sweep.compare()["dflash-k1"].positions) == (1, {})


@pytest.mark.parametrize(
    ("dtype", "says"),
    [
        ("bfloat16", "rounding of nearly equal logits in bfloat16 can do that"),
        ("float16", "in float16 can do that"),
        ("auto", "in the checkpoint's dtype can do that"),
        ("float32", "look at the method"),
    ],
)
def test_reason_follows_the_dtype_where_the_baseline_repeats_itself(dtype: str, says: str) -> None:
    sweep = repeating(Sweep(dtype=dtype))
    sweep.say(sweep.plan.arms[1], {0: (0,)})

    reason = sweep.compare()["dflash-k1"].reason

    assert reason
    assert says in reason
    assert "not measured" not in reason


def test_engine_that_does_not_repeat_itself_is_the_reason() -> None:
    sweep = Sweep(num_blocks=8)
    sweep.say(sweep.plan.baseline, {})
    sweep.say(sweep.plan.baseline, {0: (0,), 5: (0,)}, phase="closing")
    sweep.say(sweep.plan.arms[1], {1: (0,), 6: (0,), 7: (0,)})
    sweep.say(sweep.plan.arms[2], dict.fromkeys(range(14), (0,)))

    found = sweep.compare()

    assert "does not repeat itself" in str(found["none"].reason)
    assert "differs from itself on 2 of 16 prompts" in str(found["dflash-k1"].reason)
    assert "rounding of nearly equal logits" in str(found["dflash-k7"].reason), "14 of 16 is more than 2 of 16"


def test_reason_says_that_the_baseline_was_not_measured_twice() -> None:
    sweep = Sweep()
    sweep.say(sweep.plan.baseline, {})
    sweep.say(sweep.plan.arms[1], {0: (0,)})

    found = sweep.compare()

    assert "none" not in found
    assert "whether the baseline repeats itself was not measured" in str(found["dflash-k1"].reason)


def test_turns_of_a_conversation_are_compared_each_with_its_own() -> None:
    plan = make_plan((7,), num_blocks=2)
    block = plan.blocks[0].model_copy(update={"num_turns": (2, 1)})
    plan = plan.model_copy(update={"blocks": (block,)})
    first, second = block.prompt_indices
    said = {(first, 0): (1, 2), (first, 1): (3, 4), (second, 0): (5, 6)}
    raw: dict[str, list[RawRequest]] = {}
    blocks = []
    for arm, changed in ((plan.arms[0], {}), (plan.arms[1], {(first, 1): (3, 9)})):
        outputs = said | changed
        record = block_record(plan, arm, block, output_sha256=tuple(str(ids) for ids in outputs.values()))
        blocks.append(record)
        raw[record.visit_id] = [
            RawRequest(prompt_index=index, turn=turn, sent_s=0, end_s=1, block_id=block.id, output_token_ids=ids)
            for (index, turn), ids in outputs.items()
        ]

    [match] = compare_outputs(plan, blocks, lambda visit_id: raw[visit_id])

    assert (match.num_prompts, match.num_different, match.positions) == (3, 1, {1: 1})
