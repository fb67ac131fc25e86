"""What a sweep on a fleet does beside measuring, on the head: it renews the lease while it runs, and at its end brings
the results to S3 and gives the workers back."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from orchestrator.artifacts import upload_folder
from orchestrator.config import Fleet, SweepConfig
from orchestrator.errors import FleetFailed, OrchestratorError
from orchestrator.fleet_aws import Aws, groups_of, head_of, network_since, nodes_of
from orchestrator.fleet_lease import release, set_lease
from orchestrator.fleet_money import lease_end, running_usd_per_hour, spent_usd
from orchestrator.fleet_nodes import NODES, remember
from orchestrator.sweep_dir import SweepDir

LONGEST_PERIOD_S = 600.0
"""EC2 tells of an ended node for about an hour: looked at more often, none is missed in the costs."""
_log = logging.getLogger(__name__)


@contextmanager
def kept_fleet(config: SweepConfig, fleet: Fleet, sweep_dir: SweepDir, console: Console) -> Iterator[None]:
    """While a sweep measures. An interruption leaves the workers to the lease, so that the same command can continue.

    Raises:
        FleetFailed, ArtifactsFailed: at the end; what was measured is in the sweep's folder on the head.
    """
    keeper = LeaseKeeper(config, fleet, console)
    with keeper:
        try:
            yield
        except OrchestratorError:
            _hand_in(fleet, sweep_dir, keeper.aws, console)
            raise
        _hand_in(fleet, sweep_dir, keeper.aws, console)


class LeaseKeeper:
    """A thread that moves the lease on, four times in its length."""

    def __init__(self, config: SweepConfig, fleet: Fleet, console: Console) -> None:
        self.aws = Aws(fleet.region)
        self._config, self._fleet, self._console = config, fleet, console
        self._known = Path(config.results_dir) / f"{fleet.name}-{NODES}"
        """For all sweeps of this fleet, which share its budget."""
        self._is_cut = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def __enter__(self) -> "LeaseKeeper":
        self.renew()  # the first one here, so that a fleet that cannot be kept is known before anything is measured
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def renew(self) -> datetime:
        """Set the lease anew, within what max_hours and the budget allow."""
        fleet, now = self._fleet, datetime.now(UTC)
        groups = groups_of(self.aws, fleet.name)
        if not groups:
            raise FleetFailed(f"no group of workers carries the tag of fleet {fleet.name}; is it down?")
        nodes = remember(self._known, nodes_of(self.aws, fleet.name), now)
        profiles = (self._config.hardware,)
        head = head_of(nodes)
        end = lease_end(
            fleet,
            now,
            head.launched_utc if head else min((node.launched_utc for node in nodes), default=now),
            self._config.cluster.budget_usd,
            spent_usd(fleet, profiles, nodes, now, network_since(self.aws, fleet.name)),
            running_usd_per_hour(fleet, profiles, nodes),
        )
        set_lease(self.aws, groups, end)
        self._tell_if_cut(now, end)
        return end

    def _tell_if_cut(self, now: datetime, end: datetime) -> None:
        if self._is_cut or end >= now + timedelta(hours=self._fleet.ttl_hours):
            return
        self._is_cut = True
        self._console.print(
            f"The workers end at {end:%Y-%m-%d %H:%M} UTC, whatever is unmeasured then: cluster.aws.max_hours or "
            "cluster.budget_usd allows no more. What is measured is kept, and the same command continues",
            style="yellow",
            highlight=False,
        )

    def _run(self) -> None:
        while not self._over.wait(min(LONGEST_PERIOD_S, self._fleet.ttl_hours * 3600 / 4)):
            try:
                self.renew()
            except FleetFailed as error:  # three more tries before the lease ends
                _log.warning("the lease was not renewed: %s", error)


def _hand_in(fleet: Fleet, sweep_dir: SweepDir, aws: Aws, console: Console) -> None:
    """Workers first: they cost, while the results lie safe on the head."""
    if fleet.release_at_end:
        groups = release(aws, fleet.name)
        console.print(f"Released the workers of {', '.join(groups) or fleet.name}", highlight=False)
    if fleet.results_bucket:
        # A sweep that continues has changed files, and nothing is overwritten: so a folder an upload.
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
        uri = f"s3://{fleet.results_bucket}/{sweep_dir.sweep_id}/{stamp}"
        sums = upload_folder(sweep_dir.path, uri)
        console.print(f"Uploaded {len(sums)} files with checksums to {uri}", highlight=False, soft_wrap=True)
