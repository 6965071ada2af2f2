"""Serve folders of CTranslate2 over HTTP on this machine.

    python server.py SERVED/* --port 8000
    curl -d '{"from": "en", "to": "de", "lines": ["A dog runs."]}' http://127.0.0.1:8000

The answer is `{"lines": […]}`, or `{"error": …}` with status 400, 411 or 413. GET answers with the
pairs of languages, for monitoring. SIGTERM ends the server after the requests that are running.
"""

import argparse
import json
import signal
import sys
import textwrap
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from translate import Translator

MOST_BYTES = 1 << 20  # of a request


class Handler(BaseHTTPRequestHandler):
    timeout = 60  # seconds to wait for a client

    def do_GET(self):
        self.answer(200, {"pairs": list(self.server.translators)})

    do_HEAD = do_GET

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not (length.isdecimal() and len(length) < 20):
            self.refuse(411, "The request must have a Content-Length, the number of its bytes.")
            return
        # Most clients read an answer only when they have sent all of their request.
        body = self.rfile.read(min(int(length), 16 * MOST_BYTES))
        if len(body) > MOST_BYTES:
            self.refuse(413, f"The request must have at most {MOST_BYTES} bytes, but has {length}.")
            return
        start = time.monotonic()
        try:
            source, target, lines = checked(body, self.server.translators)
            translator = self.server.translators[f"{source}-{target}"]
            answer = {"lines": translator.translate(lines, source, target, self.server.beam)}
        except ValueError as error:
            self.refuse(400, str(error))
            return
        seconds = time.monotonic() - start
        self.log_message("%s-%s: %d lines, %.2f s", source, target, len(lines), seconds)
        self.answer(200, answer)

    def refuse(self, status, sentence):
        self.answer(status, {"error": sentence})

    def answer(self, status, content):
        body = json.dumps(content, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def checked(body, pairs):
    """Return the languages and the lines of a request (ValueError)."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict) or request.keys() != {"from", "to", "lines"}:
        raise ValueError("The request must be JSON with `from`, `to` and `lines`.")
    lines = request["lines"]
    if not (isinstance(lines, list) and all(isinstance(line, str) for line in lines)):
        raise ValueError("`lines` must be a list of texts.")
    pair = f"{request['from']}-{request['to']}"
    if pair not in pairs:
        served = textwrap.shorten(", ".join(pairs), 300, placeholder=" …")
        raise ValueError(
            f"`from` and `to` must be a pair that is served ({served}), but are {pair!r}."
        )
    return request["from"], request["to"], lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", metavar="SERVED", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--intra-threads", type=int, default=1, help="of one batch")
    parser.add_argument(
        "--inter-threads", type=int, default=1, help="batches at the same time, of a folder"
    )
    args = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    server.daemon_threads = False  # server_close waits for requests
    server.beam = args.beam
    server.translators = {}
    try:
        for folder in args.folders:
            translator = Translator(
                folder, intra_threads=args.intra_threads, inter_threads=args.inter_threads
            )
            server.translators.update(dict.fromkeys(translator.pairs, translator))
    except ValueError as error:
        sys.exit(f"error: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    with server:
        server.serve_forever()
