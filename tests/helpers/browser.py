"""A real browser without a window, for pages: Chromium, steered through a pipe by its DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The contrast of texts with what is behind them, as WCAG 2 has it.
_CONTRASTS = """(names => {
  const linear = x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(x => linear(x / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const colour = one => getComputedStyle(one).backgroundColor;
  const paper = one => colour(one) === 'rgba(0, 0, 0, 0)' && one.parentElement ? paper(one.parentElement) : colour(one);
  const ratio = one => {
    const [a, b] = [light(getComputedStyle(one).color), light(paper(one))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  return names.map(name => ratio(document.querySelector(name)));
})"""
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    """The first one on PATH."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a running browser. `events`: what it told: requests, violations of its policy, dialogues."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, os.fdopen(read, "rb")
        self._number, self._session = 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": params, **session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def open(self, page: Path | str) -> None:
        """Open a file or an address."""
        self.events.clear()
        self.send("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        self.wait_for("Page.loadEventFired")

    def wait_for(self, method: str) -> None:
        """Wait until the page tells of such an event, if it has not yet."""
        while not self.told(method):
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def contrasts(self, names: Sequence[str]) -> list[float]:
        return list(self.run(f"{_CONTRASTS}({json.dumps(names)})"))

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def requests(self) -> list[str]:
        return [sent["request"]["url"] for sent in self.told("Network.requestWillBeSent")]

    def told(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def _next(self) -> dict[str, Any]:
        message = bytearray()
        while (sign := self._read.read(1)) != b"\0":
            if not sign:
                raise RuntimeError("the browser has ended")
            message += sign
        return dict(json.loads(message))


@contextmanager
def running_browser(path: str, profile: Path) -> Iterator[Browser]:
    """A browser that ends with the block."""
    (its_read, write), (read, its_write) = os.pipe(), os.pipe()

    def as_3_and_4() -> None:  # where `--remote-debugging-pipe` looks; first out of the way of each other
        for target, descriptor in ((3, os.dup2(its_read, 50)), (4, os.dup2(its_write, 51))):
            os.dup2(descriptor, target)

    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # which root cannot have
    process = subprocess.Popen(
        [path, "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
         "--disable-background-networking", f"--user-data-dir={profile}", *sandbox],
        preexec_fn=as_3_and_4, close_fds=False, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(its_read)
    os.close(its_write)
    try:
        yield Browser(write, read)
    finally:
        process.terminate()
        process.wait(10)
        os.close(write)
