"""A web server on this machine that fails as those of the world do, when it is told to."""

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
    hold: float = 0.0  # the answer comes only after so many seconds
    status: int = 0  # the answer is this, with `headers`, and no file
    headers: dict[str, str] = field(default_factory=dict)
    whole: bool = False  # it sends the file from its beginning, whatever part of it is asked for
    content: bytes | None = None  # it sends this in the place of the file


@dataclass
class Page:
    """A file on the server; each answer has the next of its faults, as long as there are any."""

    content: bytes
    headers: dict[str, str]
    faults: list[Fault]
    told_size: bool = True  # the server says how long it is


class Web:
    """Pages by their path, and which requests came."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.pages: dict[str, Page] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.at_once = self.most_at_once = 0
        self.closing = threading.Event()
        self.lock = threading.Lock()

    def put(self, path: str, content: bytes, *faults: Fault, told_size: bool = True, **headers: str) -> str:
        self.pages[path] = Page(content, headers, list(faults), told_size)
        return self.address + path

    def ranges(self, path: str) -> list[str | None]:
        return [headers.get("Range") for asked, headers in self.requests if asked == path]


class _Handler(BaseHTTPRequestHandler):
    web: Web

    def do_GET(self) -> None:
        web = self.web
        page = web.pages.get(self.path, Page(b"", {}, [Fault(status=404)]))
        with web.lock:
            web.requests.append((self.path, dict(self.headers)))
            fault = page.faults.pop(0) if page.faults else Fault()
            web.at_once += 1
            web.most_at_once = max(web.most_at_once, web.at_once)
        web.closing.wait(fault.hold)
        with web.lock:
            web.at_once -= 1
        with suppress(BrokenPipeError, ConnectionResetError):
            self._answer(page, fault)

    do_HEAD = do_GET

    def _answer(self, page: Page, fault: Fault) -> None:
        if fault.status:
            self._head(fault.status, {"Content-Length": "0", **fault.headers})
            return
        content = page.content if fault.content is None else fault.content
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if fault.whole or self.headers.get("If-Range") not in (None, *page.headers.values()):
            start = 0
        if start and start >= len(content):
            self._head(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"})
            return
        headers = {**page.headers, **fault.headers}
        headers |= {"Content-Length": str(len(content) - start)} if page.told_size else {}
        headers |= {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self._head(206 if start else 200, headers)
        if self.command == "HEAD":
            return
        self.wfile.write(content[start:][: fault.drop if fault.stall is None else fault.stall])
        self.wfile.flush()
        if fault.drop is not None:
            self.connection.close()
        elif fault.stall is not None:
            self.web.closing.wait()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests look at `Web.requests`."""


@contextmanager
def web_server() -> Iterator[Web]:
    """A server in threads of this process, until the block ends."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.web = web = Web(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        web.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
