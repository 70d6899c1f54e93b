"""The page at `/` in a real browser, with a tiny model."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from specinfer.drafters import DraftJob
from specinfer.service.api_keys import make_key, write_keys
from specinfer.tree import TokenTree
from tests.support.network.browser import barriers, browser, needs_chromium, visit
from tests.support.network.fake_gateway import TEXT, FakeGateway, fake_gateways
from tests.support.network.http_service import MODEL, HttpService, http_service
from tests.support.oracle import chain, first, greedy
from tests.support.system import ScriptedDrafter, System, ascii_tokenizer, running_system

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]
QUESTION = "Why is the sky blue?"
TOKENS, STEPS = 24, 8
LOOKS: list[tuple[Literal["light", "dark"], int]] = [("light", 1280), ("dark", 1280), ("light", 360)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    """Browser of all tests, as it takes a second to start."""
    async with browser() as running:
        yield running


@asynccontextmanager
async def served(redis_url: str, **options: str) -> AsyncIterator[tuple[System, HttpService]]:
    """Run a system whose steps accept a token of both speculators and one only "far" drafted."""
    drafters = {"near": ScriptedDrafter(first(1)), "far": ScriptedDrafter(two_right)}
    async with (
        running_system(redis_url, drafters, tree_nodes=6, **options) as system,
        http_service(system.address) as http,
    ):
        yield system, http


def two_right(job: DraftJob) -> TokenTree:
    return chain(job.context[-1], greedy(job.context, 2))


async def ask(page: Page, question: str = QUESTION, tokens: int = TOKENS) -> str:
    """Type a question with the keyboard, and return the whole answer."""
    await page.get_by_text("Options").click()
    await page.get_by_label("Maximum tokens").fill(str(tokens))
    await page.get_by_text("Options").click()
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn[aria-busy=false]").last).to_be_visible()
    return await page.locator(".turn .answer > .text").last.inner_text()


async def answer_of(system: System, question: str = QUESTION) -> str:
    """Return the answer over gRPC with plain decoding."""
    prompt = ascii_tokenizer().encode_chat([{"role": "user", "content": question}])
    replies = await system.generate(prompt, max_new_tokens=TOKENS, ignore_eos=False, speculation=3)
    return "".join(reply.text for reply in replies)


async def test_an_answer_its_trees_and_a_race(redis_url: str, chromium: Browser) -> None:
    async with served(redis_url) as (system, http), visit(chromium, http.url) as page:
        await expect(page.locator("#model")).to_have_text("tiny")
        expected = await answer_of(system)
        assert await ask(page) == expected.strip()
        await expect(page.locator(".note")).to_contain_text(f"cut at {TOKENS} tokens, the requested maximum")
        await see_marks(page, expected)
        await see_trees(page)

        await page.get_by_role("button", name="Race").click()
        verdict = page.locator(".verdict.equal")
        await expect(verdict).to_contain_text(f"Same text, character for character ({TOKENS} tokens).")
        await expect(verdict).to_contain_text(f"{STEPS} passes of the model instead of {TOKENS}")
        texts = page.locator(".column .text")
        assert [await texts.nth(i).text_content() for i in range(2)] == [expected] * 2
        assert await page.locator(".column").last.locator(".guessed").count() == 0


async def see_marks(page: Page, expected: str) -> None:
    """Check that all text is marked by steps, and tokens by their speculators."""
    marked = page.locator(".answer > .text > .step")
    assert await marked.count() == STEPS
    assert "".join(await marked.all_text_contents()) == expected
    titles = await page.locator(".answer > .text .token").evaluate_all("all => all.map(one => one.title)")
    assert set(titles) == {"guessed by near and far", "guessed by far", "the model's own"}
    legend = await page.locator("#legend li").all_text_contents()
    assert {"near", "far", "the model itself"} <= set(legend)


async def see_trees(page: Page) -> None:
    """Check that the keyboard moves the slider, and that a step shows its tree and tokens."""
    slider, tree = page.get_by_role("slider", name="Step"), page.locator("#tree svg")
    await slider.focus()
    await page.keyboard.press("Home")
    await expect(page.locator("#steps-title")).to_have_text(f"Step 1 of {STEPS}")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#steps-title")).to_have_text(f"Step 2 of {STEPS}")
    await expect(page.locator(".step.chosen")).to_have_attribute("data-step", "1")
    kinds = [await tree.locator(f".node.{kind}").count() for kind in ("root", "accepted", "bonus")]
    assert kinds == [1, 2, 1]
    rejected = await tree.locator(".node.rejected").count()
    assert rejected > 0, "the token that only one speculator drafted"
    words = await tree.locator(".accepted .word, .bonus .word").all_text_contents()
    shown = await page.locator(".step.chosen").text_content()
    assert sorted("".join(words)) == sorted((shown or "").replace(" ", "·"))
    bars = [await tree.locator(".accepted").nth(index).locator(".bar").count() for index in range(2)]
    assert bars == [2, 1], "colours of the token's speculators"
    assert await tree.locator(".chance").count() == 2 + rejected
    facts = await page.locator("#facts").inner_text()
    assert "near and far, trees of up to 6 nodes (always so, as configured)" in facts
    await page.get_by_text("The tree as a table").click()
    rows = page.locator("#table tbody tr")
    await expect(rows).to_have_count(2 + rejected)
    await expect(rows.first).to_contain_text("near 90 %, far 90 %")
    await page.locator(".step").first.click()
    await expect(page.locator("#steps-title")).to_have_text(f"Step 1 of {STEPS}")


MARKDOWN = """# Merge
Use **two** pointers, `i` and `j`, in **this
way**:

```python
while i < len(a):  # **not bold**
    out.append(a[i])
```

| list | `n` |
|------|-----|
and `open"""
STYLED = [
    ["heading", "# Merge"],
    ["strong", "**two**"],
    ["code", "`i`"],
    ["code", "`j`"],
    ["fence", "```python"],
    ["code", "while i < len(a):  # **not bold**"],
    ["code", "    out.append(a[i])"],
    ["fence", "```"],
    ["code", "| list | `n` |"],
    ["code", "|------|-----|"],
]
"""Class and text of all styled parts; marks that are open or span lines are not styled."""
SHOW = """async ([texts, at]) => {
    const { AnswerText } = await import("/page/answer.js");
    const step = (tokens) => ({ tokens: tokens.map((text) => ({ text })), nodes: [], accepted: [] });
    const element = document.createElement("div");
    const answer = new AnswerText(element);
    const recording = { steps: [], dropped: 0, text: texts.join("") };
    for (let i = 0; i < texts.length; i += at) {
        recording.steps.push(step(texts.slice(i, i + at)));
        answer.show(recording);
    }
    const styled = [...element.querySelectorAll(".token > span")].map((one) => [one.className, one.textContent]);
    return [element.textContent, styled, element.querySelectorAll(".token").length];
}"""
"""JavaScript that shows tokens, `at` in a step; returns text, styled parts, number of tokens."""


async def test_markdown_is_styled_however_it_is_split_into_tokens(chromium: Browser) -> None:
    draws = random.Random(0)
    async with http_service("127.0.0.1:1") as http:
        context = await chromium.new_context()
        page = await context.new_page()
        await page.goto(http.url)
        for number in range(40):
            cuts = sorted(draws.sample(range(1, len(MARKDOWN)), draws.choice([5, 30, 90])))
            tokens = [MARKDOWN[a:b] for a, b in pairwise([0, *cuts, len(MARKDOWN)])]
            text, styled, count = await page.evaluate(SHOW, [tokens, 1 + number % 4])
            assert text == MARKDOWN
            assert count == len(tokens), "a token stays one element"
            whole = [
                [kind, "".join(one[1] for one in pieces)] for kind, pieces in groupby(styled, itemgetter(0))
            ]
            expected = [
                [k, "".join(one[1] for one in pieces)] for k, pieces in groupby(STYLED, itemgetter(0))
            ]
            assert whole == expected, tokens


async def test_the_page_is_accessible(redis_url: str, chromium: Browser) -> None:
    """axe-core finds no barriers: empty or full, light or dark, wide or narrow."""
    async with served(redis_url) as (_, http), visit(chromium, http.url) as page:
        await expect(page.locator("#model")).to_have_text("tiny")
        assert await barriers(page) == []
        await ask(page)
        await page.get_by_role("button", name="Race").click()
        await expect(page.locator(".verdict.equal")).to_be_visible()
        await page.get_by_text("The tree as a table").click()
        await page.get_by_text("Options").click()
        for scheme, width in LOOKS:
            await page.emulate_media(color_scheme=scheme)
            await page.set_viewport_size({"width": width, "height": 800})
            assert await barriers(page) == [], (scheme, width)
            overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{width} wide"


async def test_keys_and_errors(redis_url: str, tmp_path: Path, chromium: Browser) -> None:
    key, stored = make_key("alice")
    write_keys(tmp_path / "keys", [stored])
    async with served(redis_url, api_keys=str(tmp_path / "keys")) as (_, http):
        context = await chromium.new_context()  # the browser writes refused calls to the console
        page = await context.new_page()
        await page.goto(http.url)
        await expect(page.locator("#model")).to_contain_text("authorization: must be given once")
        await page.get_by_text("Options").click()
        await page.get_by_label("API key").fill(key)
        await page.get_by_label("API key").press("Tab")
        await expect(page.locator("#model")).to_have_text("tiny")
        await page.get_by_text("Options").click()
        await ask(page)
        await expect(page.locator(".step").first).to_be_visible()
        await ask(page, "x" * 600)
        await expect(page.get_by_role("alert")).to_contain_text("over the context of 512")


async def test_an_answer_is_shown_without_steps(chromium: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways of older versions have no `Watch`."""
    monkeypatch.delattr(FakeGateway, "Watch")
    async with fake_gateways([]) as (gateway,):
        gateway.states.append(MODEL)
        async with http_service(gateway.address) as http:
            context = await chromium.new_context()
            page = await context.new_page()
            await page.goto(http.url)
            assert await ask(page) == TEXT
            await expect(page.locator(".note")).to_contain_text("The steps are not available")


async def test_the_files_are_served_with_a_strict_policy() -> None:
    async with http_service("127.0.0.1:1") as http:
        page = await http.plain.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        script = await http.plain.get("/page/main.js")
        assert script.headers["content-type"].startswith("text/javascript")
        for reply in (page, script):
            policy = reply.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            same = await http.plain.get(
                str(reply.request.url), headers={"If-None-Match": reply.headers["etag"]}
            )
            assert same.status_code == 304 or reply is page
        missing = await http.plain.get("/page/../app.py")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "invalid_request")
