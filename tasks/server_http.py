"""Short, bounded HTTP requests to the engine, and ports for it; the load generator has a client of its own."""

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

HOST = "127.0.0.1"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""http_proxy of the environment must not see, or break, requests to loopback."""


class Answer(NamedTuple):
    """`status` 0 means that nothing answered, with the reason as `body`; else `body` is the JSON, or the text."""

    status: int
    body: Any


def ask(url: str, request: Mapping[str, object] | None = None, *, api_key: str, timeout_s: float) -> Answer:
    """GET, or POST of `request` as JSON; never raises for what a server, or its absence, can do."""
    data = None if request is None else json.dumps(request).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    try:
        with _DIRECT.open(urllib.request.Request(url, data, headers), timeout=timeout_s) as response:
            return Answer(response.status, _content(response.read()))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _content(error.read()))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, str(error))


def can_bind(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: old connections do not count
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A loopback port that is free now; it may be taken before the engine binds it (the engine then ends)."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _content(body: bytes) -> Any:
    text = body.decode(errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
