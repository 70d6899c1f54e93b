"""A headless Chromium, and pages that check for errors."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium (Debian: apt-get install chromium)")


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run a headless Chromium."""
    async with async_playwright() as playwright:
        # as root it has no sandbox; containers have little shared memory
        flags = ["--no-sandbox", "--disable-dev-shm-usage"]
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield chromium
        finally:
            await chromium.close()


@asynccontextmanager
async def visit(
    chromium: Browser, url: str, width: int = 1280, height: int = 800, **options: Any
) -> AsyncIterator[Page]:
    """Open a page; fail if it writes to the console or loads from other hosts."""
    viewport: Any = {"width": width, "height": height}
    context = await chromium.new_context(viewport=viewport, **options)
    page, problems = await context.new_page(), list[str]()
    page.set_default_timeout(30_000)
    page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda call: None if call.url.startswith(url) else problems.append(call.url))
    await page.goto(url)
    try:
        yield page
        assert problems == []
    finally:
        await context.close()


async def barriers(page: Page) -> list[tuple[str, list[str]]]:
    """Return the accessibility rules that axe-core finds violated, with the elements."""
    report = await Axe().run(page)
    return [
        (rule["id"], [node["html"][:120] for node in rule["nodes"]]) for rule in report.response["violations"]
    ]
