"""A stand-in for the instance metadata service, version 2: `with imds() as service: service.announce(...)`."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Imds:
    """What it answers, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.instance_action: str | None = None
        self.rebalance: str | None = None
        self.token = "token-1"
        """Changed, the one handed out before has run out."""
        self.asked: list[tuple[str, int]] = []
        """Path and status."""

    def announce(self, in_s: float, action: str = "terminate") -> None:
        end = datetime.now(UTC) + timedelta(seconds=in_s)
        self.instance_action = json.dumps({"action": action, "time": end.strftime("%Y-%m-%dT%H:%M:%SZ")})

    def answer(self, method: str, path: str, token: str | None) -> tuple[int, str]:
        if (method, path) == ("PUT", "/latest/api/token"):
            return 200, self.token
        if token != self.token:
            return 401, ""
        found = {
            "/latest/meta-data/spot/instance-action": self.instance_action,
            "/latest/meta-data/events/recommendations/rebalance": self.rebalance,
        }.get(path)
        return (404, "") if found is None else (200, found)


@contextmanager
def imds() -> Iterator[Imds]:
    service = Imds()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            status, text = service.answer(self.command, self.path, self.headers.get("X-aws-ec2-metadata-token"))
            service.asked.append((self.path, status))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
