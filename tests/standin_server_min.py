"""A process that looks like `vllm serve` to tasks.server: no model, standard library only.

Run as `python standin_server_min.py serve MODEL --port P ...`; STANDIN_MODE chooses how it behaves:
ready, crash (writes the file STANDIN_LOG and exits 1), hang (never listens), refuse (no chat template),
silent (does not log its configuration), stubborn (a child; both ignore SIGTERM).
"""

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        card = {"id": ARGS.model, "max_model_len": ARGS.max_model_len}
        bodies: dict[str, dict[str, object]] = {
            "/health": {},
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": [card]},
        }
        self._answer(200, bodies[self.path])

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if MODE == "refuse":
            self._answer(400, {"error": "no chat template"})
        else:
            self._answer(200, {"choices": []})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        if self.path.startswith("/v1/") and self.headers["Authorization"] != f"Bearer {os.environ['VLLM_API_KEY']}":
            status, body = 401, {"error": "Unauthorized"}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve")
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--dtype")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    parser.add_argument("--speculative-config", type=json.loads)
    return parser.parse_known_args()[0]


def engine_line() -> str:
    spec = ARGS.speculative_config
    speculation = spec and (
        f"SpeculativeConfig(method={spec['method']!r}, model={spec['model']!r}, "
        f"num_spec_tokens={spec['num_speculative_tokens']})"
    )
    return (
        "(EngineCore pid=8262) INFO 11-29 18:03:39 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
        f"model={ARGS.model!r}, speculative_config={speculation}, tokenizer={ARGS.model!r}, revision=None, "
        f"dtype=torch.{ARGS.dtype}, max_seq_len={ARGS.max_model_len}, enforce_eager={ARGS.enforce_eager}, "
        f"seed=0, served_model_name={ARGS.model}, enable_prefix_caching={ARGS.enable_prefix_caching}, "
        "enable_chunked_prefill=True\n"
    )


ARGS = arguments()
MODE = os.environ.get("STANDIN_MODE", "ready")

if MODE == "crash":
    sys.exit(Path(os.environ["STANDIN_LOG"]).read_text())
if MODE == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(600)
if MODE == "hang":
    sys.stderr.write("(APIServer pid=1) INFO 11-29 18:03:39 [loader.py:1] Loading weights\n")
    sys.stderr.flush()
    time.sleep(600)
if MODE != "silent":
    sys.stderr.write(engine_line())
    sys.stderr.flush()
ThreadingHTTPServer((ARGS.host, ARGS.port), Handler).serve_forever()
