"""The page of `mtmoe translate --web`, for several models side by side.

The server answers only requests to 127.0.0.1 or localhost from its own page, so that no other site
can use it. It stores nothing, sends no script, and translates one text at a time. For serving use
CTranslate2.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import click

from fairseq_mtmoe.core.errors import UserError, first_line, visible
from fairseq_mtmoe.core.pages import templates

if TYPE_CHECKING:
    from fairseq_mtmoe.translation.decode.text_translator import TextTranslator

HOST = "127.0.0.1"
MOST_SECONDS = 60  # in which a client sends a request
MOST_BYTES = 1 << 16  # of a request
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Shown:
    """A model's translation of a text, or the error message."""

    model: str
    lines: Sequence[str] = ()
    refusal: str = ""


class Server(ThreadingHTTPServer):
    """A server of the page (UserError: the port is taken)."""

    daemon_threads = True

    def __init__(
        self, translators: Sequence[TextTranslator], names: Sequence[str], port: int
    ) -> None:
        self.translators = translators
        self.names = list(map(visible, names))  # a file's name need not be UTF-8
        directions = [pair for translator in translators for pair in translator.directions]
        self.first_direction = directions[0]
        self.sources = sorted({source for source, _ in directions})
        self.targets = sorted({target for _, target in directions})
        self._translating = Lock()
        try:
            super().__init__((HOST, port), Page)
        except OSError as error:
            raise UserError(f"`--port` {port} cannot be used: {first_line(error)}.") from error

    @property
    def hosts(self) -> list[str]:
        """Names of the host in requests; browsers leave out port 80."""
        port = "" if self.server_port == 80 else f":{self.server_port}"
        return [f"{HOST}{port}", f"localhost{port}"]

    def translated(self, lines: Sequence[str], source: str, target: str) -> list[Shown]:
        """Return each model's translation."""
        shown = []
        with self._translating:
            for translator, name in zip(self.translators, self.names, strict=True):
                try:
                    shown.append(
                        Shown(name, translator.translate(lines, source=source, target=target))
                    )
                except UserError as error:
                    shown.append(Shown(name, refusal=str(error)))
        return shown


class Page(BaseHTTPRequestHandler):
    """Answers requests for the page."""

    server: Server
    timeout = MOST_SECONDS
    server_version = "mtmoe"
    sys_version = ""

    def do_GET(self) -> None:
        """Show the empty page."""
        if self._is_own():
            self._show("", *self.server.first_direction)

    def do_POST(self) -> None:
        """Show the translations of a text."""
        length = self.headers.get("Content-Length", "")
        if not self._is_own():
            return
        if not length.isdecimal() or int(length) > MOST_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        form = parse_qs(
            self.rfile.read(int(length)).decode(errors="replace"), keep_blank_values=True
        )
        values = {name: form.get(name, [""])[0] for name in ("text", "from", "to")}
        # Browsers send texts with CRLF line ends; keep blanks at both ends
        text = values["text"].replace("\r\n", "\n").removesuffix("\n")
        results = self.server.translated(text.split("\n"), values["from"], values["to"])
        self._show(text, values["from"], values["to"], results)

    def _is_own(self) -> bool:
        """Return whether a request is the page's own; else answer it."""
        hosts = self.server.hosts
        origins = [None, *map("http://{}".format, hosts)]
        if (
            self.headers.get("Host") in hosts
            and self.headers.get("Origin") in origins
            and self.path == "/"
        ):
            return True
        self.send_error(HTTPStatus.FORBIDDEN)
        return False

    def _show(self, text: str, source: str, target: str, results: Sequence[Shown] = ()) -> None:
        page = templates(Path(__file__).parent).get_template("translate.html.j2")
        values = {"text": text, "source": source, "target": target, "results": results}
        html = page.render(
            names=self.server.names,
            sources=self.server.sources,
            targets=self.server.targets,
            **values,
        ).encode()
        self.send_response(HTTPStatus.OK)
        for name, value in {**HEADERS, "Content-Length": str(len(html))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(html)

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing: requests are not logged."""


def serve(translators: Sequence[TextTranslator], names: Sequence[str], port: int) -> None:
    """Serve the page until interrupted; print its address.

    Raises:
        UserError: the port is taken.
    """
    with Server(translators, names, port) as server, suppress(KeyboardInterrupt):
        click.echo(f"http://{server.hosts[0]}/", err=True)
        server.serve_forever()
