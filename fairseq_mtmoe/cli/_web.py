"""The page of `mtmoe translate --web`: translations of several models side by side, on this machine only.

The server answers only requests to 127.0.0.1 or localhost from its own page, so that no other site can use it. It
stores nothing, sends no script, and translates one text at a time. For serving use CTranslate2.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fairseq_mtmoe.errors import UserError, first_line, visible
from fairseq_mtmoe.io.pages import templates

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.text_translator import TextTranslator

HOST = "127.0.0.1"
MOST_CHARACTERS, MOST_LINES = 5000, 50  # of a text
MOST_WAITING = 4  # texts
MOST_SECONDS = 60.0  # in which a client sends a request
MOST_BYTES = 1 << 16  # of a request: enough for MOST_CHARACTERS of any script, percent-encoded
_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'", "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Server": "mtmoe",
}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A model's translation of a text, or the error message."""

    model: str
    lines: Sequence[str] = ()
    seconds: float = 0.0
    refusal: str = ""


class _Left(Exception):
    """Raised to stop a translation whose client has disconnected."""


@dataclass
class Desk:
    """Models that translate texts one at a time."""

    translators: Sequence[TextTranslator]
    names: Sequence[str]
    _asked: set[asyncio.Task[list[Shown]]] = field(default_factory=set)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @property
    def langs(self) -> list[str]:
        """Return the languages of all models, sorted."""
        return sorted({lang for translator in self.translators for lang in translator.langs})

    @property
    def waiting(self) -> int:
        """Return the number of texts that are waiting or being translated."""
        return len(self._asked)

    def ask(self, lines: Sequence[str], source: str, target: str) -> asyncio.Task[list[Shown]]:
        """Return a task with each model's translation; cancelling it stops the translation or skips its turn."""
        asked = asyncio.get_running_loop().create_task(self._ask(lines, source, target))
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        return asked

    def close(self) -> None:
        """Stop all translations."""
        for asked in self._asked:
            asked.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, *text: Any) -> list[Shown]:
        has_left = Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._translate, has_left, *text)
        finally:
            has_left.set()

    def _translate(self, has_left: Event, lines: Sequence[str], source: str, target: str) -> list[Shown]:
        from torch.nn.modules.module import register_module_forward_pre_hook

        def stop(*_: object) -> None:
            if has_left.is_set():
                raise _Left

        shown = []
        with register_module_forward_pre_hook(stop):  # each layer of each step of the search
            for translator, name in zip(self.translators, self.names, strict=True):
                start = perf_counter()
                try:
                    found = translator.translate(lines, source=source, target=target)
                    shown.append(Shown(name, found, perf_counter() - start))
                except UserError as error:
                    shown.append(Shown(name, refusal=str(error)))
        return shown


def serve(
    translators: Sequence[TextTranslator], names: Sequence[str], port: int, ready: Callable[[str], object]
) -> None:
    """Serve the page until interrupted; call `ready` with its address (UserError: the port is taken)."""
    with suppress(KeyboardInterrupt):
        asyncio.run(serving(translators, names, port, ready))


async def serving(
    translators: Sequence[TextTranslator], names: Sequence[str], port: int, ready: Callable[[str], object]
) -> None:
    """Serve the page until cancelled; see `serve`."""
    from tornado.httpserver import HTTPServer
    from tornado.netutil import bind_sockets
    from tornado.web import Application

    try:
        sockets = bind_sockets(port, HOST)
    except OSError as error:
        raise UserError(f"`--port` must be a free port, but {port} is not: {first_line(error)}.") from error
    desk = Desk(translators, list(map(visible, names)))  # a file's name need not be UTF-8
    address = f"{HOST}:{sockets[0].getsockname()[1]}"
    names_of_host = (address, address.replace(HOST, "localhost"))
    hosts = tuple(name for host in names_of_host for name in (host, host.removesuffix(":80")))  # browsers omit port 80
    handlers = [("/", _handler(), {"desk": desk, "hosts": hosts})]
    server = HTTPServer(
        Application(handlers, log_function=lambda handler: None), max_body_size=MOST_BYTES,
        idle_connection_timeout=MOST_SECONDS, body_timeout=MOST_SECONDS,
    )  # fmt: skip
    server.add_sockets(sockets)
    ready(f"http://{address}/")
    try:
        await asyncio.Event().wait()
    finally:
        server.stop()
        desk.close()
        await server.close_all_connections()


def expect_server() -> None:
    """Raise `UserError` if the server's library is missing."""
    if importlib.util.find_spec("tornado") is None:
        raise UserError("`--web` needs tornado: install it with `pip install tornado`.")


def _handler() -> Any:
    """Return the request handler's class; importing tornado only here keeps it optional."""
    from tornado.web import HTTPError, RequestHandler

    class Page(RequestHandler):
        def initialize(self, desk: Desk, hosts: Sequence[str]) -> None:
            self.desk, self.hosts = desk, hosts
            self.asked: asyncio.Task[list[Shown]] | None = None

        def set_default_headers(self) -> None:
            for name, value in _HEADERS.items():
                self.set_header(name, value)

        def prepare(self) -> None:
            origin = self.request.headers.get("Origin")
            if self.request.host not in self.hosts or origin not in (None, *(f"http://{host}" for host in self.hosts)):
                raise HTTPError(HTTPStatus.FORBIDDEN)

        def get(self) -> None:
            self._show()

        async def post(self) -> None:
            # Browsers send texts with CRLF line ends; keep blanks at both ends
            text = self.get_body_argument("text", "", strip=False).replace("\r\n", "\n").removesuffix("\n")
            source, target = self.get_body_argument("from", ""), self.get_body_argument("to", "")
            lines, asked = text.split("\n"), (text, source, target)
            if len(text) > MOST_CHARACTERS or len(lines) > MOST_LINES:
                self.set_status(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                most = f"{MOST_CHARACTERS:,} characters and {MOST_LINES} lines"
                self._show(*asked, refusal=f"The text must have at most {most}; `mtmoe translate` has no limit.")
            elif self.desk.waiting >= MOST_WAITING:
                self.set_status(HTTPStatus.SERVICE_UNAVAILABLE)
                self._show(*asked, refusal=f"{MOST_WAITING} texts are waiting: try again.")
            else:
                self.asked = self.desk.ask(lines, source, target)
                with suppress(asyncio.CancelledError):  # the client has disconnected
                    self._show(*asked, results=await self.asked)

        def on_connection_close(self) -> None:
            if self.asked is not None:
                self.asked.cancel()

        def _show(
            self, text: str = "", source: str = "", target: str = "", refusal: str = "", results: Sequence[Shown] = ()
        ) -> None:
            page = templates(Path(__file__).parent).get_template("translate.html.j2")
            self.finish(page.render(
                names=self.desk.names, langs=self.desk.langs, text=text, source=source, target=target,
                refusal=refusal, results=results, most=MOST_CHARACTERS,
            ))  # fmt: skip

    return Page
