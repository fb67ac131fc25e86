"""Prompts: read from JSON lines, counted as the server will see them, dropped where they do not fit."""

import json
from pathlib import Path

import pytest

from orchestrator.config import Dataset, Model
from orchestrator.errors import ConfigError, HubUnavailable, PromptsUnavailable
from orchestrator.plan import PromptSet
from orchestrator.records import Message
from tasks.prompts import CountTokens, load_prompt_set, tokenizer_count

DATA = Path(__file__).parents[2].parent / "shared" / "data"
DEMO = Model(name="demo", target="demo://target", max_model_len=1024)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def demo_count() -> CountTokens:
    return tokenizer_count(DEMO)


def words(messages: tuple[Message, ...]) -> int:
    return sum(len(message.content.split()) for message in messages)


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load(path: Path, *, room: int = 100, seed: int = 0, **settings: object) -> PromptSet:
    dataset = Dataset.model_validate({"data_files": str(path), **settings})
    return load_prompt_set("mine", dataset, count=words, max_prompt_tokens=room, seed=seed)


def texts(prompts: PromptSet) -> list[str]:
    return [prompt.messages[0].content for prompt in prompts.prompts]


def test_prompts_keep_the_files_order_and_their_length(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"prompt": "three words here"}, {"prompt": "naïve 🙂"}])

    prompts = load(path)

    assert texts(prompts) == ["three words here", "naïve 🙂"]
    assert [prompt.num_tokens for prompt in prompts.prompts] == [3, 2]
    assert (prompts.num_read, prompts.num_too_long) == (2, 0)
    assert {message.role for prompt in prompts.prompts for message in prompt.messages} == {"user"}


def test_prompt_that_leaves_no_room_for_the_output_is_dropped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"prompt": "w " * n} for n in (4, 5, 6)])

    prompts = load(path, room=5)

    assert [prompt.num_tokens for prompt in prompts.prompts] == [4, 5]
    assert (prompts.num_read, prompts.num_too_long) == (3, 1)


def test_first_turn_of_a_list_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"turns": ["first", "second"]}])

    assert texts(load(path, prompt_field="turns")) == ["first"]


def test_template_surrounds_the_prompt_whatever_braces_it_holds(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"prompt": "def f(): return {1: '{x}'}"}])

    assert texts(load(path, prompt_template="Complete:\n{prompt}\n{}")) == ["Complete:\ndef f(): return {1: '{x}'}\n{}"]


def test_sample_is_drawn_by_the_seed_in_the_files_order(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"prompt": f"{i:02d}"} for i in range(40)])

    first, again, other = (texts(load(path, num_prompts=10, seed=seed)) for seed in (0, 0, 1))

    assert first == again == sorted(first)
    assert first != other
    assert len(first) == 10
    assert texts(load(path, num_prompts=99)) == texts(load(path))


def test_rows_without_text_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"prompt": "a"}, {"prompt": None}, {"prompt": " \n"}, {"prompt": "b"}])

    assert texts(load(path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"dataset 'mine': empty file .*p\.jsonl; correct datasets\.mine\.data_files"),
        ("no json\n", "is not JSON lines with one object a line"),
        ('{"prompt": "a"}\n{"prompt":', "is not JSON lines with one object a line"),
        ('{"promt": "a"}\n', r"no field 'prompt', but promt.*did you mean .*set datasets\.mine\.prompt_field"),
        ('{"prompt": "  "}\n', "holds no prompt in field 'prompt'"),
        ('{"prompt": 3}\n', "holds no prompt in field 'prompt'"),
        ("{}\n", r"dataset 'mine': .*p\.jsonl"),
    ],
)
def test_unusable_file_is_one_clear_error_and_not_taken_for_a_hub_that_is_down(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content)

    with pytest.raises(PromptsUnavailable, match=message) as caught:
        load(path)

    assert not isinstance(caught.value, HubUnavailable)
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptsUnavailable, match=r"no such file .*absent\.jsonl; correct datasets\.mine\.data_files"):
        load(tmp_path / "absent.jsonl")


def test_unknown_demo_file_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"demo://prompts/code\.jsonl"):
        load_prompt_set(
            "mine", Dataset(data_files="demo://prompts/cod.jsonl"), count=words, max_prompt_tokens=9, seed=0
        )


def test_relative_file_counts_from_the_folder_the_command_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "p.jsonl", [{"prompt": "a"}])
    monkeypatch.chdir(tmp_path)

    assert texts(load(Path("p.jsonl"))) == ["a"]


def test_edited_file_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"prompt": "old"}])
    load(path)
    write(path, [{"prompt": "new and longer"}])

    assert texts(load(path)) == ["new and longer"]


def test_length_holds_the_chat_template_and_the_generation_prompt(demo_count: CountTokens) -> None:
    from transformers import AutoTokenizer

    from tasks.demo import resolve_model

    tokenizer = AutoTokenizer.from_pretrained(resolve_model("demo://target"))
    alone = len(tokenizer("hello", add_special_tokens=False)["input_ids"])

    assert demo_count((Message(role="user", content="hello"),)) > alone


def test_tokenizer_that_cannot_be_had_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(HubUnavailable, match=r"model\.target=.*none.*check the name, the network and HF_TOKEN"):
        tokenizer_count(DEMO.model_copy(update={"target": str(tmp_path / "none")}))


CHAT_TEMPLATE = 13
"""Tokens that the demo's chat template puts around a user's message."""


@pytest.mark.parametrize(
    ("file", "field", "number", "longest"),
    [
        ("humaneval.jsonl", "prompt", 164, 655 + CHAT_TEMPLATE),
        ("gsm8k_test.jsonl", "question", 1319, 336 + CHAT_TEMPLATE),
        ("mt_bench_question.jsonl", "turns", 80, 822 + CHAT_TEMPLATE),
    ],
)
def test_original_data_sets_fit_the_demo_pair(
    demo_count: CountTokens, file: str, field: str, number: int, longest: int
) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"the original data set is not here: {DATA / file}")
    dataset = Dataset(data_files=str(DATA / file), prompt_field=field)

    all_of_them = load_prompt_set("original", dataset, count=demo_count, max_prompt_tokens=longest, seed=0)
    assert longest + 128 <= DEMO.max_model_len
    one_token_less = load_prompt_set("original", dataset, count=demo_count, max_prompt_tokens=longest - 1, seed=0)

    assert (len(all_of_them.prompts), all_of_them.num_too_long) == (number, 0)
    assert one_token_less.num_too_long >= 1


def test_conversation_must_fit_with_all_its_answers(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"turns": ["w " * 4, "w " * n]} for n in (4, 5)])

    # 4 + 16 for the first answer, an eighth of it as slack, and 4 or 5 more; the room is for the last prompt.
    dataset = Dataset(data_files=str(path), prompt_field="turns", turns="all")
    prompts = load_prompt_set("mine", dataset, count=words, max_prompt_tokens=26, output_len=16, seed=0)

    assert [prompt.later_turns for prompt in prompts.prompts] == [("w " * 4,)]
    assert (prompts.num_read, prompts.num_too_long) == (2, 1)
    assert prompts.prompts[0].num_tokens == 4


def test_input_is_appended_where_there_is_one_inside_the_template(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl", [{"instruction": "sum up", "input": "text"}, {"instruction": "sing", "input": ""}]
    )

    found = texts(load(path, prompt_field="instruction", input_field="input", prompt_template="<{prompt}>"))

    assert found == ["<sum up\n\ntext>", "<sing>"]


def test_field_of_an_object_is_reached_by_a_dot(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"body": {"messages": [{"role": "user", "content": "hi"}]}}])

    assert texts(load(path, prompt_field="body.messages")) == ["hi"]


def test_recorded_turns_without_answers_name_the_dataset(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"turns": ["one", "two"]}])

    with pytest.raises(PromptsUnavailable, match=r"dataset 'mine': .*needs an answer by the assistant.*choose another"):
        load(path, prompt_field="turns", turns="recorded")


def test_logged_request_fits_with_its_own_length(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "w " * 4}], "at": 0, "max_tokens": n} for n in (8, 9)]
    path = write(tmp_path / "log.jsonl", rows)  # type: ignore[arg-type]

    dataset = Dataset(data_files=str(path), prompt_field="messages", turns="last", arrival_field="at")
    prompts = load_prompt_set("mine", dataset, count=words, max_prompt_tokens=6, output_len=6, seed=0)

    assert [prompt.max_tokens for prompt in prompts.prompts] == [8]


def test_faulty_log_is_one_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [{"messages": "hi", "at": "noon"}])

    with pytest.raises(PromptsUnavailable, match=r"dataset 'mine': .*log\.jsonl: line 1: has no time in 'at'"):
        load(path, prompt_field="messages", turns="last", arrival_field="at")


def test_two_turns_of_mt_bench_fit_the_demo_pair_with_short_answers(demo_count: CountTokens) -> None:
    path = DATA / "mt_bench_question.jsonl"
    if not path.exists():
        pytest.skip(f"the original data set is not here: {path}")
    dataset = Dataset(data_files=str(path), prompt_field="turns", turns="all")

    prompts = load_prompt_set(
        "original", dataset, count=demo_count, max_prompt_tokens=DEMO.max_model_len - 32, output_len=32, seed=0
    )

    assert {prompt.num_turns for prompt in prompts.prompts} == {2}
    assert (len(prompts.prompts), prompts.num_too_long) == (80, 0)
