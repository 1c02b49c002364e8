"""The API behind HTTP: a thin layer for programs in other languages on the same machine. Keeps no history and logs none.

POST /recommend   {"items": ["50", "181"], "k": 10, "without": []}   ->   {"known": 2, "unknown": 0, "items": [...]}
GET  /model                                                           ->   catalogue, rows and format of the model
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.recommender import Recommender

LARGEST_BODY = 1 << 20
MOST = 1000


def build_server(recommender: Recommender, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """A server that is bound and not yet serving; port 0 takes a free one.

    Raises
    ------
    ModelError if the address cannot be bound.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/model":
                return self._answer(404, {"error": "ask for /model, or post to /recommend"})
            return self._answer(
                200, {"catalogue": recommender.catalogue.facts(), "run": recommender.manifest.get("run", {})}
            )

        def do_POST(self) -> None:
            if self.path != "/recommend":
                return self._answer(404, {"error": "post to /recommend"})
            try:
                asked = _request(self._body())
                return self._answer(200, recommender.recommend(*asked).to_dict())
            except (ValueError, ModelError) as error:
                return self._answer(400, {"error": str(error)})

        def _body(self) -> bytes:
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > LARGEST_BODY:
                raise ModelError(f"Content-Length must be given and <= {LARGEST_BODY}, got {length!r}")
            return self.rfile.read(int(length))

        def _answer(self, status: int, value: dict[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Nothing: who asked, and when, is part of a history."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:  # a port beyond 65,535 is an overflow
        why = getattr(error, "strerror", None) or error
        raise ModelError(f"{host}:{port} cannot be listened on ({why}); take another --port") from error


def _request(body: bytes) -> tuple[list[str], int, None, list[str]]:
    """History, k, no private vector, ids to leave out."""
    try:
        asked = json.loads(body)
    except RecursionError:
        raise ModelError("the request is nested too deeply; give lists of ids") from None
    if not isinstance(asked, dict) or not set(asked) <= {"items", "k", "without"}:
        raise ModelError('the request must be {"items": [...], "k": 10, "without": []}')
    lists = [asked.get(name, []) for name in ("items", "without")]
    if not all(isinstance(each, list) and all(isinstance(i, str | int) for i in each) for each in lists):
        raise ModelError("items and without must be lists of ids")
    k = asked.get("k", 10)
    if type(k) is not int or not 1 <= k <= MOST:
        raise ModelError(f"k must be an integer from 1 to {MOST}, got {k!r}")
    return [str(each) for each in lists[0]], k, None, [str(each) for each in lists[1]]
