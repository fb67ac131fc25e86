"""Stands in for `docker`: `run` becomes the stand-in server in the place of the image's entry point, `inspect` tells
its process id, and every call is written down as a JSON line in the file STANDIN_DOCKER_LOG."""

import json
import os
import sys
from pathlib import Path

SERVER = Path(__file__).with_name("server.py")
WITH_VALUE = {"--name", "--security-opt", "--cpuset-cpus", "-p", "-e", "-v"}


def main() -> None:
    log = Path(os.environ["STANDIN_DOCKER_LOG"])
    with log.open("a") as file:
        file.write(json.dumps({"argv": sys.argv[1:], "pid": os.getpid()}) + "\n")
    if sys.argv[1] == "inspect":
        calls = [json.loads(line) for line in log.read_text().splitlines()]
        sys.stdout.write(f"{next(call['pid'] for call in calls if call['argv'][0] == 'run')}\n")
    elif sys.argv[1] == "run":
        image = _image_at(sys.argv)
        model, *flags = ["127.0.0.1" if part == "0.0.0.0" else part for part in sys.argv[image + 1 :]]
        os.execv(sys.executable, [sys.executable, str(SERVER), "serve", model, *flags])


def _image_at(argv: list[str]) -> int:
    at = 2
    while argv[at].startswith("-"):
        at += 2 if argv[at] in WITH_VALUE else 1
    return at


if __name__ == "__main__":
    main()
