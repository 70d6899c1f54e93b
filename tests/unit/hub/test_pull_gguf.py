"""Pulling a GGUF file of the hub by its format, against a server with the hub's API."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from specinfer.hub import resolve_model
from tests.support.models.gguf_models import write_model_file


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Content of the GGUF file."""
    return write_model_file(tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


class Hub(BaseHTTPRequestHandler):
    """The hub's API for one repository with a GGUF file, which a server's `content` is."""

    name = "model-q8_0.gguf"

    def do_GET(self) -> None:
        """Answer the list of files, and the file."""
        content: bytes = self.server.content  # type: ignore[attr-defined]
        sha = sha256(content).hexdigest()
        if self.path.startswith("/api/models/some/repo"):
            lfs = {"sha256": sha, "size": len(content), "pointerSize": 1}
            files = [{"rfilename": self.name, "size": len(content), "lfs": lfs}, {"rfilename": "README.md"}]
            about = {"id": "some/repo", "sha": "0" * 40, "siblings": files}
            self._send(json.dumps(about).encode(), {"Content-Type": "application/json"})
        elif self.path.endswith(f"/{self.name}"):
            self._send(content, {"X-Repo-Commit": "0" * 40, "ETag": f'"{sha}"'})
        else:
            self.send_error(404)

    do_HEAD = do_GET  # noqa: N815

    def _send(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def hub(whole: bytes, cache: Path) -> Iterator[dict[str, str]]:
    """Environment of a command that calls the hub at a server of this test."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.content = whole  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield {
            **os.environ,
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HUB_DISABLE_XET": "1",
        }
        server.shutdown()
        thread.join()


def test_a_gguf_file_of_the_hub_is_pulled_by_its_format(
    hub: dict[str, str], whole: bytes, cache: Path
) -> None:
    command = [sys.executable, "-m", "specinfer.cli", "pull"]
    done = subprocess.run(
        [*command, "some/repo:Q8_0", "--with-draft"], capture_output=True, text=True, env=hub
    )
    assert done.returncode == 0, done.stderr
    directory = cache / "models" / "some--repo:Q8_0"
    assert done.stdout == f"{directory}\n"
    assert "no known model drafts for some/repo:Q8_0" in done.stderr
    assert (directory / "source.gguf").read_bytes() == whole
    assert resolve_model("some/repo:Q8_0") == directory
    other = subprocess.run([*command, "some/repo:Q4_K_M"], capture_output=True, text=True, env=hub)
    assert other.returncode == 2
    assert "MODEL = 'some/repo:Q4_K_M': 0 files in Q4_K_M; GGUF files: model-q8_0.gguf" in other.stderr
