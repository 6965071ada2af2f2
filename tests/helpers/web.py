"""A web server on this machine that fails as those of the world do, when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Fault:
    """What goes wrong with one answer."""

    drop: int | None = None  # the connection breaks off after so many bytes of the body
    stall: int | None = None  # nothing comes after so many bytes, until the server is closed
    drip: int | None = None  # after so many bytes they come one by one, 20 in a second
    hold: float = 0.0  # the answer comes only after so many seconds
    status: int = 0  # the answer is this, with `headers`, and no file
    headers: dict[str, str] = field(default_factory=dict)
    whole: bool = False  # it sends the file from its beginning, whatever part of it is asked for
    careless: bool = False  # it sends the part, though the file is no longer the one that `If-Range` names
    content: bytes | None = None  # it sends this in the place of the file


@dataclass
class Page:
    """A file on the server; each answer has the next of its faults, as long as there are any."""

    content: bytes
    tag: str = ""  # its ETag
    date: str = ""  # when it was changed
    told_size: bool = True  # the server says how long it is
    headers: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


class Web:
    """Pages by their path, and which requests came."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.pages: dict[str, Page] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.at_once = self.most_at_once = 0
        self.closing = threading.Event()
        self.lock = threading.Lock()

    def put(self, path: str, content: bytes, *faults: Fault, **page: object) -> str:
        self.pages[path] = Page(content, faults=list(faults), **page)
        return self.address + path

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count who waits for an answer at the same time."""
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        yield
        with self.lock:
            self.at_once -= 1

    def ranges(self, path: str) -> list[str | None]:
        return [headers.get("Range") for asked, headers in self.requests if asked == path]


class _Handler(BaseHTTPRequestHandler):
    web: Web

    def do_GET(self) -> None:
        with self.web.lock:
            self.web.requests.append((self.path, dict(self.headers)))
        with suppress(BrokenPipeError, ConnectionResetError):
            self._answer()

    def _answer(self) -> None:
        page = self.web.pages.get(self.path)
        if page is None:
            self.send_error(404)
            return
        fault = page.faults.pop(0) if page.faults else Fault()
        with self.web.counted():
            self.web.closing.wait(fault.hold)
        if fault.status:
            self._head(fault.status, {"Content-Length": "0", **fault.headers})
            return
        content = page.content if fault.content is None else fault.content
        start = 0 if fault.whole else self._start(page, fault.careless)
        if start and start >= len(content):
            self._head(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"})
            return
        self._send(page, fault, content, start)

    def _start(self, page: Page, careless: bool) -> int:
        asked, condition = self.headers.get("Range"), None if careless else self.headers.get("If-Range")
        if asked is None or (condition is not None and condition not in (page.tag, page.date)):
            return 0
        return int(asked.removeprefix("bytes=").partition("-")[0])

    def _send(self, page: Page, fault: Fault, content: bytes, start: int) -> None:
        headers = {**page.headers, **fault.headers}
        headers |= {"ETag": page.tag} if page.tag else {}
        headers |= {"Last-Modified": page.date} if page.date else {}
        headers |= {"Content-Length": str(len(content) - start)} if page.told_size else {}
        headers |= {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self._head(206 if start else 200, headers)
        number = next((one for one in (fault.drop, fault.stall, fault.drip) if one is not None), None)
        body, rest = content[start:][:number], content[start:][number:] if number is not None else b""
        self.wfile.write(body)
        self.wfile.flush()
        if fault.drop is not None:
            self.connection.close()
        elif fault.stall is not None:
            self.web.closing.wait()
        for place in range(len(rest) if fault.drip is not None else 0):
            self.wfile.write(rest[place : place + 1])
            self.wfile.flush()
            if self.web.closing.wait(0.05):
                return

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests look at `Web.requests`."""


@contextmanager
def web_server(host: str = "127.0.0.1") -> Iterator[Web]:
    """A server in threads of this process, until the block ends."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer((host, 0), handler)
    server.daemon_threads = True
    handler.web = web = Web(f"http://{host}:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        web.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
