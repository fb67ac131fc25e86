"""Content identity: equal content, equal id, in every process and on every machine."""

import hashlib
import json

from pydantic import BaseModel


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces.

    Raises:
        ValueError, TypeError: `value` holds NaN, infinity or something JSON has no form for.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_id(value: object) -> str:
    """First 12 hex digits of the SHA-256 of the canonical JSON: 48 bits, enough for 10^5 blocks."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return canonical_id(canonical_json(plain))


def canonical_id(text: str) -> str:
    """The `content_id` of the value whose canonical JSON is `text`: for those who join it from parts they have."""
    return text_sha256(text)[:12]


def text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
