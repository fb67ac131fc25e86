"""Watches for the end of a spot node: `python -m tasks.interruption [--imds URL] -- COMMAND ...`.

Polls the instance metadata service (version 2). Once AWS announces an interruption it writes the notice for the
visits on this node (see tasks.notice), waits until they have handed in what they measured, at most until 60 s before
the end, and runs COMMAND, which stops Ray so that it drains. Ends with COMMAND's exit code.
Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

import argparse
import http.client
import logging
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress

from pydantic import ValidationError

from orchestrator.errors import NodeUnavailable
from tasks.notice import Notice, announced, any_under_way, lock_file, notice_file

IMDS = "http://169.254.169.254"
TOKEN_TTL_S = 21600
REQUEST_TIMEOUT_S = 2.0
STOP_BEFORE_END_S = 60.0
HAND_IN_S = 3.0
"""From a visit's end on the node until its last record is with the driver, generously."""

log = logging.getLogger("interruption")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The metadata service is on the host itself."""


class Metadata:
    """The two answers of IMDSv2 that announce an end."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._token = ""

    def interruption(self) -> Notice | None:
        """What is announced; None while nothing is."""
        text = self._get("/latest/meta-data/spot/instance-action")
        return Notice.model_validate_json(text) if text else None

    def rebalance(self) -> str | None:
        """The recommendation that may come before an interruption, as it is; None while there is none."""
        return self._get("/latest/meta-data/events/recommendations/rebalance")

    def _get(self, path: str) -> str | None:
        for is_last in (False, True):
            self._token = self._token or self._new_token()
            try:
                return self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    if error.code != 401 or is_last:
                        raise
                    self._token = ""  # it has run out
        return None

    def _new_token(self) -> str:
        return self._ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)})

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(self._url + path, headers=headers, method=method)
        with _DIRECT.open(request, timeout=REQUEST_TIMEOUT_S) as response:
            return str(response.read().decode())


def wait_for_notice(metadata: Metadata, poll_s: float) -> Notice:
    """Ask until an interruption is announced. A metadata service that fails is asked again: it may come back."""
    has_rebalance = False
    last_fault = ""
    while True:
        try:
            if notice := metadata.interruption():
                return notice
            if not has_rebalance and (recommendation := metadata.rebalance()):
                has_rebalance = True
                log.info("AWS recommends to rebalance (%s): nothing is done about it", recommendation)
            last_fault = ""
        except (OSError, http.client.HTTPException, ValidationError) as error:
            if str(error) != last_fault:
                log.warning("the metadata service does not answer as it should, and is asked again: %s", error)
            last_fault = str(error)
        time.sleep(poll_s)


def tell_visits(notice: Notice) -> None:
    """Whole or not at all: a visit may read just then."""
    path = notice_file()
    temporary = path.with_suffix(".tmp")
    temporary.write_text(notice.model_dump_json())
    temporary.replace(path)


def wait_for_visits(notice: Notice, poll_s: float) -> None:
    """Until none runs and the last one has handed in, or until no more time is left."""
    while any_under_way():
        if notice.left_s < STOP_BEFORE_END_S:
            log.warning("a visit still runs %.0f s before the end", notice.left_s)
            return
        time.sleep(min(poll_s, 1.0))
    time.sleep(max(0.0, min(HAND_IN_S, notice.left_s - STOP_BEFORE_END_S)))


def prepare() -> None:
    """The lock for visits to share, and no notice from an earlier life of this node: one whose time has passed."""
    lock_file().parent.mkdir(parents=True, exist_ok=True)
    lock_file().touch()
    with suppress(NodeUnavailable):
        notice = announced()
        if notice is None or notice.left_s > 0:
            return  # this watcher was started again while its node goes down, where Ray must not come back
    notice_file().unlink()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.interruption", description=__doc__)
    parser.add_argument("--imds", default=IMDS, help="where the metadata service is")
    parser.add_argument("--poll-s", type=float, default=5.0)
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="stops Ray on this node")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    prepare()
    notice = wait_for_notice(Metadata(args.imds), args.poll_s)
    log.warning("%s", notice)
    tell_visits(notice)
    wait_for_visits(notice, args.poll_s)
    log.info("stopping Ray: %s", args.command)
    return subprocess.run(args.command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
