"""Several hosts on one machine: network namespaces on a bridge, each with its own processes, /tmp and /dev/shm.

Needs root and `ip` (iproute2). A host's link can be cut for real, and all that runs on it dies with it.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.integration.sweeping import Running, Sandbox

RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6379
HEALTH_CHECKS = {
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_grpc_client_keepalive_time_ms": "10000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
"""As README.md says for nodes."""


def why_not() -> str | None:
    """Why there can be no hosts here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("nsenter"):
        return "needs ip (iproute2) and nsenter (util-linux)"
    name = f"sw-{uuid.uuid4().hex[:8]}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "network namespaces cannot be made here"
    _run("ip", "netns", "delete", name)
    return None


class Host:
    """One of `Hosts`: its init process holds the namespaces, and everything in them ends with it."""

    def __init__(self, name: str, netns: str, address: str, box: Sandbox) -> None:
        self.name, self.netns, self.address, self._box = name, netns, address, box
        self._boot()

    def _boot(self) -> None:
        """`--kill-child` ties the host's process 1 to this one, and that one ends all others."""
        mounts = "; ".join(
            f"mount -t tmpfs tmpfs {shlex.quote(str(path))}" for path in (self._box.temporary, "/dev/shm")
        )
        private = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        script = f"hostname {self.name}; {mounts}; echo up; exec sleep infinity"
        self._unshare = subprocess.Popen(
            ["ip", "netns", "exec", self.netns, *private, "sh", "-c", script],
            env=self._box.env,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._unshare.stdout is not None
        assert self._unshare.stdout.readline() == b"up\n"
        self._init = psutil.Process(self._unshare.pid).children()[0].pid

    @property
    def enter(self) -> list[str]:
        """What a command is put behind to run on this host."""
        return ["nsenter", f"--target={self._init}", "--mount", "--pid", "--uts", "--net", f"--wd={self._box.path}"]

    def start_ray(self, *arguments: str) -> None:
        command = [*self.enter, RAY, "start", "--num-cpus=1", *arguments, f"--node-ip-address={self.address}"]
        common = ["--object-store-memory=100000000", "--disable-usage-stats"]
        env = self._box.env | HEALTH_CHECKS | {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
        for attempts_left in (2, 1, 0):  # Ray gives its raylet 30 s, which is too little where all CPUs are busy
            done = subprocess.run([*command, *common], env=env, check=False, capture_output=True)
            if done.returncode == 0:
                return
            assert attempts_left, done.stdout + done.stderr
            self.kill_all()

    def processes(self, text: str = "") -> list[psutil.Process]:
        """Those of the sandbox on this host whose command line has `text` in it."""
        mine = Path(f"/proc/{self._init}/ns/pid").readlink()
        return [
            process for process in self._box.processes() if _namespace(process) == mine and text in _command(process)
        ]

    def raylet(self) -> psutil.Process:
        [raylet] = self.processes("/core/src/ray/raylet/raylet --raylet_socket_name")
        return raylet

    def stop_all(self) -> None:
        """The whole host hangs."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal_all(signal.SIGCONT)

    def kill_all(self) -> None:
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self.processes():
            if process.pid != self._init:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def die(self) -> None:
        self._unshare.kill()
        self._unshare.wait()

    def boot_again(self) -> None:
        self.die()
        self._boot()


class Hosts:
    """The hub, and the hosts on it by name."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self._tag = uuid.uuid4().hex[:6]
        self._hub = f"sw-{self._tag}-hub"
        self._all: dict[str, Host] = {}
        _run("ip", "netns", "add", self._hub)
        self._on_hub("ip", "link", "add", "bridge", "type", "bridge")
        self._on_hub("ip", "link", "set", "bridge", "up")

    def __getitem__(self, name: str) -> Host:
        return self._all[name]

    def add(self, name: str) -> Host:
        netns, number = f"sw-{self._tag}-{name}", len(self._all) + 1
        address = f"10.77.0.{number}"
        _run("ip", "netns", "add", netns)
        self._on_hub("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", netns)
        self._on_hub("ip", "link", "set", f"to-{name}", "master", "bridge", "up")
        for command in ("addr add {}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _run("ip", "-netns", netns, *command.format(address).split())
        self._all[name] = Host(name, netns, address, self.box)
        return self._all[name]

    def head(self) -> Host:
        """A host that runs Ray's head, and measures nothing."""
        head = self.add("head")
        self.start_head(head)
        return head

    def start_head(self, head: Host) -> None:
        head.start_ray("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.box.temporary}/r")

    def driver(self) -> Host:
        """A host that sweeps are started on, and that measures nothing."""
        driver = self.add("driver")
        self.join_driver(driver)
        return driver

    def join_driver(self, driver: Host) -> None:
        driver.start_ray(f"--address={self._all['head'].address}:{PORT}", "--num-cpus=0")

    def node(self, name: str) -> Host:
        """A host that measures."""
        node = self.add(name)
        self.join(node)
        return node

    def nodes(self, *names: str) -> list[Host]:
        """Several at once: a start takes seconds."""
        with ThreadPoolExecutor() as pool:
            made = [self.add(name) for name in names]
            list(pool.map(self.join, made))
        return made

    def join(self, node: Host) -> None:
        address = self._all["head"].address
        node.start_ray(f"--address={address}:{PORT}", f"--node-name={node.name}", "--resources", '{"xeon_node": 1}')

    def sweep(self, *arguments: str, host: str = "head") -> Running:
        """Start a sweep on that host."""
        head = self._all["head"]
        joined = ("cluster=address", f"cluster.address={head.address}:{PORT}", "cluster.auth_mode=disabled")
        return self.box.start(*arguments, *joined, prefix=self._all[host].enter)

    def cut(self, node: Host) -> None:
        """Pull the cable."""
        self._on_hub("ip", "link", "set", f"to-{node.name}", "down")

    def mend(self, node: Host) -> None:
        self._on_hub("ip", "link", "set", f"to-{node.name}", "up")

    def end(self) -> None:
        for host in self._all.values():
            host.die()
            _run("ip", "netns", "delete", host.netns)
        _run("ip", "netns", "delete", self._hub)

    def _on_hub(self, *command: str) -> None:
        _run("ip", "netns", "exec", self._hub, *command)


@contextmanager
def hosts(box: Sandbox) -> Iterator[Hosts]:
    found = Hosts(box)
    try:
        yield found
    finally:
        found.end()


def wait_until(happens: object, timeout_s: float) -> float:
    """Seconds until `happens()` was true."""
    begun = time.monotonic()
    assert callable(happens)
    while not happens():
        assert time.monotonic() - begun < timeout_s, f"not within {timeout_s} s"
        time.sleep(0.05)
    return time.monotonic() - begun


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it may have ended just now
        return ""


def _namespace(process: psutil.Process) -> Path | None:
    try:
        return Path(f"/proc/{process.pid}/ns/pid").readlink()
    except OSError:
        return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
