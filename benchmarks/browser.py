"""A headless Chromium over its own protocol (https://chromedevtools.github.io/devtools-protocol/): pages are opened,
timed and photographed. Needs `chromium` on the PATH, or its place in CHROMIUM."""

import asyncio
import base64
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

START_TIMEOUT_S = 30.0


class Page:
    """One tab."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last_id = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Events in between are dropped: whoever waits, polls."""
        self._last_id += 1
        await self._socket.send_json({"id": self._last_id, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    async def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        """From now on the window has this size in CSS pixels, and the page this colour scheme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def evaluate(self, expression: str) -> Any:
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return result["result"].get("value")

    async def wait_for(self, condition: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not await self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the page never came to: {condition}")
            await asyncio.sleep(0.2)

    async def open(self, url: str) -> None:
        """Until the page has loaded. From an empty page, since a change after the # alone loads nothing anew."""
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)
        await self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")

    async def photograph(self, path: Path) -> None:
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def chromium_page() -> AsyncIterator[Page]:
    """A tab of a fresh Chromium, which ends with the block."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("no chromium on the PATH; install it, or name it in CHROMIUM")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            async with ClientSession() as session:
                port = await _port(Path(profile) / "DevToolsActivePort")
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tab = next(target for target in await answer.json() if target["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            process.terminate()
            process.wait(timeout=START_TIMEOUT_S)


async def _port(file: Path) -> int:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not file.exists() or not file.read_text().strip():
        if time.monotonic() > deadline:
            raise TimeoutError("chromium did not start")
        await asyncio.sleep(0.1)
    return int(file.read_text().split()[0])
