"""Serve folders of CTranslate2 over HTTP on this machine.

    python server.py de=SERVED/de fr=SERVED/fr --port 8000
    curl -d '{"from": "en", "to": "de", "lines": ["A dog runs."]}' http://127.0.0.1:8000

The answer is `{"lines": […]}`, or `{"error": …}` with status 400.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from translate import Translator

MOST_BYTES = 1 << 20  # of a request


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        status, answer = 200, {}
        try:
            request = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), MOST_BYTES)))
            translator = self.server.translators[request["to"]]
            answer["lines"] = translator.translate(request["lines"], request["from"], request["to"], self.server.beam)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            status, answer = 400, {"error": f"{type(error).__name__}: {error}"}
        body = json.dumps(answer, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", metavar="LANG=SERVED")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of one batch")
    args = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    server.translators = {}
    for named in args.folders:
        lang, _, folder = named.partition("=")
        server.translators[lang] = Translator(Path(folder), threads=args.threads)
    server.beam = args.beam
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
