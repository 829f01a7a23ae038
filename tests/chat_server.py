"""A chat-completions endpoint on this machine, for tests: answers as it is told to."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Answers every request by ``reply(body, number)``: (status, text, headers), seen in ``bodies``."""

    def __init__(self, reply) -> None:
        self.reply, self.bodies, self.keys = reply, [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.keys.append(self.headers.get("Authorization"))
                outer.bodies.append(body)
                status, text, headers = outer.reply(body, len(outer.bodies))
                pieces = [text.encode()] if isinstance(text, str) else [piece.encode() for piece in text]
                self.send_response(status)
                for name, value in ({"Content-Length": str(sum(map(len, pieces)))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                for number, piece in enumerate(pieces):
                    time.sleep(0.05 if number else 0)
                    with contextlib.suppress(ConnectionError):  # the other side may have given up
                        self.wfile.write(piece)

            def do_GET(self) -> None:  # where a redirect would lead
                outer.keys.append(self.headers.get("Authorization"))
                outer.bodies.append(None)
                self.send_error(405)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def completion(text, tokens=None, reason="stop"):
    """Return the reply (status, text, headers) that carries ``text``."""
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, json.dumps({"choices": [choice]} | usage), {}
