"""Secrets travel in the environment of the processes that need them: never in a configuration, a command line, a log
or a record. What finds them where they are not meant to be."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

_SECRET_NAME = re.compile(r"(^|_)(TOKEN|(API)?KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)
_NAMES_A_PLACE = re.compile(r"_(PATH|FILE|MODE|URI|URL|DIR)$", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"--(api[-_]key|hf[-_]token)(=.*)?", re.DOTALL)
MIN_LENGTH = 8
"""Shorter values would blot out ordinary words."""
REDACTED = "[redacted]"


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of that name would hold a secret: HF_TOKEN, but not TOKENIZERS_PARALLELISM."""
    return bool(_SECRET_NAME.search(name))


def secret_flags(arguments: Iterable[str]) -> list[str]:
    """The flags of `vllm serve` among `arguments` that put a secret on its command line, without the value."""
    return [argument.partition("=")[0] for argument in arguments if _SECRET_FLAG.fullmatch(argument)]


def has_credentials(uri: str) -> bool:
    """Whether a URI has a user or password in it."""
    return "@" in urlsplit(uri).netloc


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values in an environment that must not be seen."""
    return [
        value
        for name, value in environment.items()
        if is_secret_name(name) and not _NAMES_A_PLACE.search(name) and len(value) >= MIN_LENGTH
    ]


def redacted(text: str, secrets: Iterable[str]) -> str:
    """`text` without any of `secrets`, the longest first: one may be part of another. An empty one is none."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text
