"""Prompts of a dataset: read, rendered, counted by the target's tokenizer, and dropped where they do not fit."""

import logging
import os
import random
import socket
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from orchestrator.config import Dataset, Model
from orchestrator.errors import HubUnavailable, PromptsUnavailable
from orchestrator.plan import PromptSet
from orchestrator.records import Message, Prompt
from orchestrator.suggest import hint
from tasks.conversation import prompts_of, read_conversation
from tasks.demo import resolve_data_file, resolve_model
from tasks.request_log import read_log, value_at
from tasks.server_command import is_local

HUB_CONNECT_TIMEOUT_S = 5.0
ANSWER_SLACK = 8
"""An eighth more than its length is kept free for an answer in the next turn's context: its text may take more tokens
when it is read than it had when it was written."""


class CountTokens(Protocol):
    """Length in tokens of a conversation as the server will see it, chat template and generation prompt included."""

    def __call__(self, messages: tuple[Message, ...]) -> int: ...


def load_prompt_set(
    name: str, dataset: Dataset, *, count: CountTokens, max_prompt_tokens: int, output_len: int = 0, seed: int
) -> PromptSet:
    """All usable prompts of a dataset, at most `dataset.num_prompts`, in the dataset's own order; of a log by time.

    Args:
        max_prompt_tokens: the model's context less the output; longer prompts are dropped and counted.
        output_len: tokens of every answer, which a conversation's later turns have before them.
        seed: draws the sample where `dataset.num_prompts` is less than there is.

    Raises:
        PromptsUnavailable: the dataset cannot be read, lacks `prompt_field`, or holds no prompt.
    """
    prompts = _read_prompts(name, dataset)
    if not prompts:
        raise PromptsUnavailable(
            f"dataset {name!r} holds no prompt in field {dataset.prompt_field!r} of {_source(dataset)}"
        )
    if dataset.num_prompts and dataset.num_prompts < len(prompts):
        chosen = sorted(random.Random(f"{seed}/{name}/sample").sample(range(len(prompts)), dataset.num_prompts))
        prompts = [prompts[i] for i in chosen]
    counted = [prompt.model_copy(update={"num_tokens": count(prompt.messages)}) for prompt in prompts]
    usable = tuple(
        prompt for prompt in counted if _tokens_at_most(prompt, count, output_len) <= max_prompt_tokens + output_len
    )
    return PromptSet(prompts=usable, num_read=len(prompts), num_too_long=len(prompts) - len(usable))


def _tokens_at_most(prompt: Prompt, count: CountTokens, output_len: int) -> int:
    """What the last turn and its answer take of the context, if every answer before it has its full length."""
    conversation = list(prompt.messages)
    for text in prompt.later_turns:
        conversation += [Message(role="assistant", content=""), Message(role="user", content=text)]
    own = prompt.num_tokens if prompt.num_tokens is not None and not prompt.later_turns else count(tuple(conversation))
    return own + len(prompt.later_turns) * (output_len + output_len // ANSWER_SLACK) + (prompt.max_tokens or output_len)


def use_cache_without_network(model: Model, datasets: Iterable[Dataset]) -> None:
    """Where the hub is needed but cannot be reached, have Hugging Face's libraries use their cache alone.

    By themselves they retry for 40 s a file, be it cached or not, and print about it. They read the environment once,
    at import, so this comes first. Behind a proxy nothing is tried.
    """
    needs_hub = not is_local(resolve_model(model.target)) or any(dataset.data_files is None for dataset in datasets)
    if not needs_hub or "HF_HUB_OFFLINE" in os.environ or urllib.request.getproxies():
        return
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        socket.create_connection((hub.hostname or "", hub.port or 443), timeout=HUB_CONNECT_TIMEOUT_S).close()
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"


def tokenizer_count(model: Model) -> CountTokens:
    """Counts with the target's own tokenizer and chat template.

    Raises:
        HubUnavailable: the tokenizer cannot be had (no network, no such model, no access).
    """
    from transformers import AutoTokenizer

    target = resolve_model(model.target)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            target, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise HubUnavailable(
            f"the tokenizer of model.target={target!r} cannot be loaded: {_first_line(error)}; "
            "check the name, the network and HF_TOKEN, or give a local path"
        ) from error

    def count(messages: tuple[Message, ...]) -> int:
        conversation = [message.model_dump() for message in messages]
        text = tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=False, **model.chat_template_kwargs
        )
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return count


def _read_prompts(name: str, dataset: Dataset) -> list[Prompt]:
    """Not yet counted."""
    if dataset.arrival_field is not None and dataset.data_files is not None:
        try:
            return read_log(Path(_existing_file(name, dataset.data_files)), dataset.prompt_field, dataset.arrival_field)
        except ValueError as error:
            raise PromptsUnavailable(f"dataset {name!r}: {_source(dataset)}: {error}") from error
    rows = _read_rows(name, dataset)
    columns = {field: _column(name, key, field, rows) for key, field in _fields(dataset).items()}
    try:
        return [
            prompt
            for at, value in enumerate(columns[dataset.prompt_field])
            for prompt in prompts_of(
                _dressed(read_conversation(value), dataset, _input(columns, dataset, at)), dataset.turns
            )
        ]
    except ValueError as error:
        raise PromptsUnavailable(f"dataset {name!r}: {_source(dataset)}: {error}; choose another turns") from error


def _fields(dataset: Dataset) -> dict[str, str]:
    """Key of the configuration -> the field it names."""
    fields = {"prompt_field": dataset.prompt_field, "input_field": dataset.input_field}
    return {key: field for key, field in fields.items() if field is not None}


def _column(name: str, key: str, field: str, rows: Any) -> list[object]:
    column = field if field in rows.column_names else field.partition(".")[0]
    if column not in rows.column_names:
        raise PromptsUnavailable(
            f"dataset {name!r} has no field {field!r}, but {', '.join(rows.column_names)}"
            f"{hint(field, rows.column_names)}; set datasets.{name}.{key}"
        )
    return [value_at({column: value}, field) for value in rows[column]]


def _input(columns: Mapping[str, list[object]], dataset: Dataset, at: int) -> str:
    value = columns[dataset.input_field][at] if dataset.input_field else None
    return value if isinstance(value, str) and value.strip() else ""


def _dressed(messages: tuple[Message, ...], dataset: Dataset, more: str) -> tuple[Message, ...]:
    """With the template, and what belongs to the prompt, around the user's first message."""
    users = (at for at, message in enumerate(messages) if message.role == "user" and message.content.strip())
    first = next(users, None)
    if first is None:
        return ()
    text = messages[first].content + (f"\n\n{more}" if more else "")
    dressed = Message(role="user", content=dataset.prompt_template.replace("{prompt}", text))
    return (*messages[:first], dressed, *messages[first + 1 :])


def _read_rows(name: str, dataset: Dataset) -> Any:
    """The rows as a `datasets.Dataset`."""
    from datasets import disable_progress_bars, load_dataset
    from datasets.exceptions import DatasetGenerationError

    disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # it logs what it then raises
    try:
        if dataset.data_files is not None:
            return load_dataset("json", data_files=_existing_file(name, dataset.data_files), split="train")
        return load_dataset(dataset.path, dataset.subset, split=dataset.split, revision=dataset.revision)
    except DatasetGenerationError as error:
        raise PromptsUnavailable(
            f"dataset {name!r}: {_source(dataset)} is not JSON lines with one object a line: "
            f"{_first_line(error.__cause__ or error)}"
        ) from error
    except (OSError, ValueError) as error:
        if dataset.data_files is not None:
            raise PromptsUnavailable(f"dataset {name!r}: {_source(dataset)}: {_first_line(error)}") from error
        raise HubUnavailable(
            f"dataset {name!r} cannot be read from {_source(dataset)}: {_first_line(error)}; "
            f"check its name and the network, or give a local copy with datasets.{name}.data_files=FILE.jsonl"
        ) from error


def _existing_file(name: str, data_files: str) -> str:
    path = Path(resolve_data_file(data_files)).expanduser()
    if not path.is_file() or not path.stat().st_size:
        raise PromptsUnavailable(
            f"dataset {name!r}: {'empty' if path.is_file() else 'no such'} file {path.absolute()}; "
            f"correct datasets.{name}.data_files"
        )
    return str(path.absolute())


def _source(dataset: Dataset) -> str:
    return dataset.data_files or f"Hugging Face dataset {dataset.path!r}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
