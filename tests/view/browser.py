# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through its DevTools protocol: what a person sees of a page, and does to it.

Calls are synchronous; the loop that they turn serves the test's own pages meanwhile.
"""

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp

T = TypeVar("T")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
SECONDS = 20.0
KEYS = {
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Home": 36,
}


def found() -> str:
    """Path of a Chromium; empty for none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""


class Browser:
    """`with Browser() as browser: ...`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory(prefix="koordpy-chromium-", ignore_cleanup_errors=True)
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._session = ""
        self._target = ""
        self.errors: list[str] = []
        """What the console said in anger since the page was opened."""
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [found(), *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.run(self._connect())
        return self

    def __exit__(self, *error: object) -> None:
        self.run(self._disconnect())
        self._process.terminate()
        self._process.wait(10)
        self.loop.close()
        self._folder.cleanup()

    def run(self, job: Coroutine[Any, Any, T]) -> T:
        """Turns the loop until a job is done."""
        return self.loop.run_until_complete(asyncio.wait_for(job, 3 * SECONDS))

    async def _connect(self) -> None:
        file = Path(self._folder.name) / "DevToolsActivePort"
        for _ in range(int(SECONDS / 0.05)):
            if file.exists() and "\n" in (text := file.read_text()):
                break
            await asyncio.sleep(0.05)
        port, path = text.split("\n")[:2]
        self._http = aiohttp.ClientSession()
        self._socket = await self._http.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=1 << 28)
        self._reading = asyncio.create_task(self._read())

    async def _disconnect(self) -> None:
        self._reading.cancel()
        await self._socket.close()
        await self._http.close()

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
                continue
            what, given = said["method"], said["params"]
            if said.get("sessionId") != self._session:
                continue  # of a page that is closed
            if what == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(given["exceptionDetails"])[:600])
            elif what == "Runtime.consoleAPICalled" and given["type"] in ("error", "assert"):
                self.errors.append(json.dumps(given["args"])[:600])
            elif what == "Log.entryAdded" and given["entry"]["level"] == "error":
                self.errors.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
            elif what == "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])

    async def _call(self, method: str, **given: Any) -> Any:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        asked = {"id": number, "method": method, "params": given}
        if self._session and not method.startswith("Target."):
            asked["sessionId"] = self._session
        answer = self._answers[number]
        await self._socket.send_str(json.dumps(asked))
        said = await answer
        if "error" in said:
            raise RuntimeError(f"{method}: {said['error']}")
        return said["result"]

    def call(self, method: str, **given: Any) -> Any:
        """One command of the protocol."""
        return self.run(self._call(method, **given))

    def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False, scale: float = 1.0) -> None:
        """A new page of this size."""
        if self._target:
            self.call("Target.closeTarget", targetId=self._target)
        self.errors, self.requests = [], []
        self._session = ""
        self._target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.resize(width, height, scale)
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Gives the page another size, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def js(self, code: str) -> Any:
        """Value of an expression in the page."""
        told = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{code}: {json.dumps(told['exceptionDetails'])[:600]}")
        return told["result"].get("value")

    def until(self, code: str, seconds: float = SECONDS) -> Any:
        """Waits until an expression is true; its value."""
        end = self.loop.time() + seconds
        while not (value := self.js(code)):
            if self.loop.time() > end:
                raise AssertionError(f"not within {seconds:g} s: {code}; errors: {self.errors}")
            self.run(asyncio.sleep(0.03))
        return value

    def text(self, selector: str) -> str:
        """What stands in an element, as a person reads it."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).innerText"))

    def frames(self, count: int = 2) -> None:
        """Waits until so many frames were drawn."""
        step = "new Promise((done) => requestAnimationFrame(() => done()))"
        self.js(f"(async () => {{ for (let i = 0; i < {count}; i++) await {step}; return true; }})()")

    def key(self, name: str, *, shift: bool = False) -> None:
        """Presses a key."""
        code = KEYS.get(name, ord(name.upper()[0]) if len(name) == 1 else 0)
        given = {"key": name, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        if len(name) == 1:
            given["text"] = name
        elif name == "Enter":
            given["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Writes text where the focus is."""
        for letter in text:
            self.key(letter)

    def click(self, x: float, y: float) -> None:
        """Clicks at a place of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click_on(self, selector: str) -> None:
        """Clicks the middle of an element."""
        x, y = self.js(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({ block: 'nearest' });"
            " const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.click(x, y)

    def pixels(self, node: str, cell: int) -> list[tuple[int, ...]]:
        """The pixels of a cell of the tree on white, row by row; [] where it is not on the canvas now."""
        found = self.js(
            f"(() => {{ const c = document.querySelector('#tree'), box = c.cellBox({json.dumps(node)}, {cell});"
            " if (!box || box[1] < 0 || box[1] + box[2] > c.clientHeight) return [];"
            " const [x, y, s] = box.map((one) => one * window.devicePixelRatio);"
            " return [...c.getContext('2d').getImageData(x, y, s, s).data]; })()"
        )
        shades = [(found[i : i + 3], found[i + 3] / 255) for i in range(0, len(found), 4)]
        return [tuple(round(255 + (one - 255) * alpha) for one in colour) for colour, alpha in shades]

    def shown(self, node: str, cell: int) -> list[tuple[int, ...]]:
        """The same once it is on the canvas, which is laid out again as the page fills."""
        box = f"document.querySelector('#tree').cellBox({json.dumps(node)}, {cell})"
        height = "document.querySelector('#tree').clientHeight"
        self.until(f"(([, y, s] = [0, -1, 0]) => y >= 0 && y + s <= {height})({box} || undefined)")
        self.frames()
        return self.pixels(node, cell)

    def picture(self, path: Path) -> None:
        """Writes what is seen as a PNG."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
