"""A cell of a dataset as a conversation, and what of it is sent."""

from collections.abc import Mapping, Sequence
from typing import Literal

from orchestrator.records import Message, Prompt

Turns = Literal["first", "all", "recorded", "last"]
"""As `dataset.turns`."""
Role = Literal["system", "user", "assistant"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}
"""OpenAI's names, and those that ShareGPT's files have."""


def read_conversation(value: object) -> tuple[Message, ...]:
    """A text, a list of the user's turns, or a list of messages in OpenAI's or ShareGPT's form.

    Empty for anything else: images, tools, a role that is not known.
    """
    if isinstance(value, str):
        return (Message(role="user", content=value),) if value.strip() else ()
    if not isinstance(value, Sequence):
        return ()
    messages = [_message(item) for item in value]
    whole = tuple(message for message in messages if message is not None)
    return whole if len(whole) == len(messages) else ()


def prompts_of(messages: Sequence[Message], turns: Turns) -> list[Prompt]:
    """The requests that `turns` makes of a conversation; none where the user says nothing.

    Raises:
        ValueError: `recorded`, but there is no answer before a later turn.
    """
    users = [at for at, message in enumerate(messages) if message.role == "user" and message.content.strip()]
    if not users:
        return []
    head = tuple(messages[: users[0] + 1])
    if turns == "first":
        return [Prompt(messages=head)]
    if turns == "all":
        return [Prompt(messages=head, later_turns=tuple(messages[at].content for at in users[1:]))]
    if turns == "last":
        return [Prompt(messages=tuple(messages[: users[-1] + 1]))]
    if any(messages[at - 1].role != "assistant" for at in users[1:]):
        raise ValueError("turns=recorded needs an answer by the assistant before every later turn")
    return [Prompt(messages=tuple(messages[: at + 1])) for at in users]


def _message(item: object) -> Message | None:
    if isinstance(item, str):
        return Message(role="user", content=item)
    if not isinstance(item, Mapping):
        return None
    role = _ROLES.get(str(item.get("role") or item.get("from")))
    content = _text(item.get("content") if item.get("content") is not None else item.get("value"))
    return Message(role=role, content=content) if role and content is not None else None


def _text(content: object) -> str | None:
    """OpenAI's content may be a list of parts; only texts are taken."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return None
    parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
    return "".join(map(str, parts)) if parts and all(isinstance(part, str) for part in parts) else None
