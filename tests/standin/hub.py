"""A stand-in for the Hugging Face hub with tiny models: `with hub() as found: found.models["org/target"] = {...}`."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "1" * 40


class Hub:
    """What it serves, and what it was asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.commit = COMMIT
        """Of the branch main; every other commit of `commits` has the same files."""
        self.models: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.downloads: list[str] = []
        self.tokens: set[str | None] = set()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        parts = unquote(path.partition("?")[0]).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._api("/".join(parts[2:4]), parts[4:])
        model, name = "/".join(parts[:2]), "/".join(parts[4:])
        files = self.models.get(model, {})
        if name not in files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        etag = hashlib.sha1(files[name]).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": parts[3]}, files[name]

    def _api(self, model: str, rest: list[str]) -> tuple[int, dict[str, str], bytes]:
        if model not in self.models:
            return 401, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if model in self.gated:
            return 401, {"X-Error-Code": "GatedRepo"}, b"{}"
        if len(rest) > 1 and rest[1] not in ("main", self.commit, COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = self.models[model]
        if rest[:1] == ["tree"]:
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            return 200, {}, json.dumps(tree).encode()
        info = {"id": model, "modelId": model, "sha": self.commit, "siblings": [{"rfilename": name} for name in files]}
        return 200, {}, json.dumps(info).encode()


@contextmanager
def hub() -> Iterator[Hub]:
    found = Hub()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            status, headers, body = found.answer(self.path)
            found.tokens.add(self.headers.get("Authorization"))
            if self.command == "GET" and "/resolve/" in self.path:
                found.downloads.append(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_GET = do_HEAD = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
