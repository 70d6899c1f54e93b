"""`/`: the page that shows the trees. Its files lie in the package and load nothing from elsewhere."""

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

FILES = Path(__file__).parent / "page"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy: nothing but our own files and our own API."""
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",  # asked for again each time, and answered with 304 while they are the same
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class _Files(StaticFiles):
    """Files with our headers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *ours]}
            await send(message)

        await super().__call__(scope, receive, answer)


def add_page(app: FastAPI) -> None:
    """Serves the page at `/` and its files at `/page/`."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(FILES / "index.html", headers=HEADERS)

    app.mount("/page", _Files(directory=FILES))
