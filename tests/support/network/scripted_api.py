"""A server of OpenAI's API on loopback whose answers come from a function."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Answer = tuple[int, Mapping[str, str], Body | str]
"""(Status, headers, body); a body of type str is sent unchanged."""


@dataclass
class ApiScript:
    """Answers of a server, and the received bodies."""

    answer: Callable[[str, Body, int], Answer]
    """Function of (path, body, number of earlier calls with the same body) that returns the answer."""
    owner: str = "specinfer"
    bodies: list[Body] = field(default_factory=list)


@contextmanager
def scripted_api(script: ApiScript) -> Iterator[str]:
    """Serve a script; yield the URL."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {}, {"data": [{"id": "m", "owned_by": script.owner}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                before = script.bodies.count(body)
                script.bodies.append(body)
            self._send(*script.answer(self.path, body, before))

        def _send(self, status: int, headers: Mapping[str, str], answer: Body | str) -> None:
            data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
