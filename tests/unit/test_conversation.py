"""What of a conversation is sent, whatever form the file has it in."""

import pytest

from orchestrator.records import Message
from tasks.conversation import Turns, prompts_of, read_conversation

FORMS: list[object] = [
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}],
]


def said(value: object, turns: Turns) -> list[tuple[list[str], tuple[str, ...]]]:
    return [
        ([f"{message.role}:{message.content}" for message in prompt.messages], prompt.later_turns)
        for prompt in prompts_of(read_conversation(value), turns)
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ("first", [(["user:a"], ())]),
        ("all", [(["user:a"], ("c",))]),
        ("recorded", [(["user:a"], ()), (["user:a", "assistant:b", "user:c"], ())]),
        ("last", [(["user:a", "assistant:b", "user:c"], ())]),
    ],
)
def test_openai_and_sharegpt_forms_say_the_same(form: object, turns: Turns, expected: object) -> None:
    assert said(form, turns) == expected


def test_list_of_texts_is_what_the_user_says_in_turn() -> None:
    assert said(["one", "two"], "first") == [(["user:one"], ())]
    assert said(["one", "two"], "all") == [(["user:one"], ("two",))]


def test_system_message_stays_before_the_first_and_an_answer_at_the_end_is_not_sent() -> None:
    value = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]

    assert said(value, "first") == said(value, "last") == [(["system:be brief", "user:a"], ())]


def test_parts_of_text_are_joined() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert read_conversation([{"role": "user", "content": content}]) == (Message(role="user", content="ab"),)


@pytest.mark.parametrize(
    "value",
    [
        3,
        None,
        "  ",
        [],
        [{"role": "tool", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "user", "content": None}],
        [{"role": "assistant", "content": "nobody asked"}],
    ],
)
def test_what_cannot_be_sent_whole_is_no_prompt(value: object) -> None:
    assert said(value, "all") == []


def test_recorded_turns_need_answers_in_the_file() -> None:
    with pytest.raises(ValueError, match="needs an answer by the assistant before every later turn"):
        said(["one", "two"], "recorded")
