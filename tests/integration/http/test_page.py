"""The page at `/` in a real browser, with a tiny model."""

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from specinfer.drafters import DraftJob
from specinfer.planning.choice import PLAIN
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
    await expect(page.locator(".turn").last).to_have_attribute("aria-busy", "false")
    return await page.locator(".turn .answer > .text").last.inner_text()


async def answer_of(system: System, question: str = QUESTION) -> str:
    """Return the answer over gRPC with plain decoding."""
    prompt = ascii_tokenizer().encode_chat([{"role": "user", "content": question}])
    replies = await system.generate(prompt, max_new_tokens=TOKENS, ignore_eos=False, speculation=3)
    return "".join(reply.text for reply in replies)


async def test_an_answer_its_trees_and_a_race(redis_url: str, chromium: Browser) -> None:
    async with served(redis_url) as (system, http), visit(chromium, http.url) as page:
        await expect(page.locator("#model")).to_have_text("tiny")
        expected = re.sub(
            "`([^`]+)`", r"\1", await answer_of(system)
        ).strip()  # the marks of code are not shown
        await expect(page.locator("#about")).to_contain_text("context 512")
        assert await ask(page) == expected
        await expect(page.locator(".note")).to_contain_text(f"cut at {TOKENS} tokens, the requested maximum")
        await see_marks(page, expected)
        await see_trees(page)

        await page.get_by_role("button", name="Race").click()
        verdict = page.locator(".verdict.equal")
        await expect(verdict).to_contain_text(f"Same text, character for character ({TOKENS} tokens).")
        await expect(verdict).to_contain_text(
            f"{2 * STEPS} passes of the model instead of {2 * TOKENS}, two runs each"
        )
        texts = page.locator(".column .text")
        assert [await texts.nth(i).text_content() for i in range(2)] == [expected] * 2
        assert await page.locator(".column").last.locator(".guessed").count() == 0


async def see_marks(page: Page, expected: str) -> None:
    """Check that all text is marked by steps, and tokens by their speculators."""
    marked = page.locator(".answer > .text .token")
    steps = await marked.evaluate_all("all => all.map(one => Number(one.dataset.step))")
    assert sorted(set(steps)) == list(range(STEPS))
    assert steps == sorted(steps)
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
    await expect(page.locator(".token.chosen").first).to_have_attribute("data-step", "1")
    kinds = [await tree.locator(f".node.{kind}").count() for kind in ("root", "accepted", "bonus")]
    assert kinds == [1, 2, 1]
    rejected = await tree.locator(".node.rejected").count()
    assert rejected > 0, "the token that only one speculator drafted"
    words = await tree.locator(".accepted .word, .bonus .word").all_text_contents()
    shown = "".join(await page.locator(".token.chosen").all_text_contents())
    assert sorted("".join(words).replace("`", "")) == sorted(shown.replace(" ", "·"))
    bars = [await tree.locator(".accepted").nth(index).locator(".bar").count() for index in range(2)]
    assert bars == [2, 1], "colours of the token's speculators"
    assert await tree.locator(".chance").count() == 2 + rejected
    facts = await page.locator("#facts").inner_text()
    assert "near and far, trees of up to 6 nodes (always so, as configured)" in facts
    await page.get_by_text("The tree as a table").click()
    rows = page.locator("#table tbody tr")
    await expect(rows).to_have_count(2 + rejected)
    await expect(rows.first).to_contain_text("near 90 %, far 90 %")
    await page.locator(".token").first.click()
    await expect(page.locator("#steps-title")).to_have_text(f"Step 1 of {STEPS}")


MARKDOWN = """# Merge

Use **two** pointers, `i` and *j* in [a list](https://python.org), not <b>this</b>.
See [that](javascript:alert(1)).

- one
  - nested **deep**
    more
2. two

```python
while i < len(a):  # **not bold**
    out.append(a[i])
```

| list | `n` |
|------|-----|
| a | 5 |

and `open"""
RENDERED = [
    ("h4", ["Merge"]),
    ("strong", ["two", "deep"]),
    ("em", ["j"]),
    ("a", ["a list"]),
    ("b", []),
    ("li li", ["nested deep\nmore"]),
    ("pre code", ["while i < len(a):  # **not bold**\n    out.append(a[i])"]),
    ("th", ["list", "n"]),
    ("td", ["a", "5"]),
]
"""Selectors, and the texts of their elements."""
SHOW = """async ([texts, at, selectors]) => {
    const { AnswerText } = await import("/page/answer.js");
    const step = (tokens) => ({ tokens: tokens.map((text) => ({ text })), nodes: [], accepted: [] });
    const element = document.createElement("div");
    const answer = new AnswerText(element);
    const recording = { steps: [], dropped: 0, text: texts.join("") };
    for (let i = 0; i < texts.length; i += at) {
        recording.steps.push(step(texts.slice(i, i + at)));
        answer.show(recording);
    }
    for (const button of element.querySelectorAll("button")) button.remove();
    const found = selectors.map((one) => [...element.querySelectorAll(one)].map((node) => node.textContent));
    const marks = [...element.querySelectorAll(".token")].map((one) => [Number(one.dataset.step), one.textContent]);
    return [found, marks, element.textContent];
}"""
"""JavaScript that shows tokens, `at` in a step; returns texts of elements, (step, text) of marks, and the text."""


def in_order(piece: str, text: str) -> bool:
    """Return whether a text has the characters of a piece in this order: indentation is left out."""
    characters = iter(text)
    return all(character in characters for character in piece)


async def test_markdown_is_rendered_however_it_is_split_into_tokens(chromium: Browser) -> None:
    """No HTML of an answer becomes an element, and each mark is a part of its own step's text."""
    draws = random.Random(0)
    async with http_service("127.0.0.1:1") as http:
        context = await chromium.new_context()
        page = await context.new_page()
        await page.goto(http.url)
        for number in range(40):
            cuts = sorted(draws.sample(range(1, len(MARKDOWN)), draws.choice([5, 30, 90])))
            tokens = [MARKDOWN[a:b] for a, b in pairwise([0, *cuts, len(MARKDOWN)])]
            at = 1 + number % 4
            found, marks, text = await page.evaluate(SHOW, [tokens, at, [name for name, _ in RENDERED]])
            assert found == [texts for _, texts in RENDERED], tokens
            steps = ["".join(tokens[begin : begin + at]) for begin in range(0, len(tokens), at)]
            assert all(in_order(piece, steps[step]) for step, piece in marks)
            assert "".join(piece for _, piece in marks) == text, "all of the text is marked"
            assert "<b>this</b>" in text


async def test_a_conversation_survives_a_reload_and_can_be_changed(redis_url: str, chromium: Browser) -> None:
    async with served(redis_url) as (_, http), visit(chromium, http.url) as page:
        answer = await ask(page)
        await page.get_by_label("Your message").fill("And the sea?")
        await page.keyboard.press("Enter")
        await expect(page.locator(".turn[aria-busy=false]")).to_have_count(2)
        await page.reload()
        assert await page.locator(".question").all_text_contents() == [
            f"You: {QUESTION}",
            "You: And the sea?",
        ]
        assert (await page.locator(".answer > .text").first.inner_text()) == answer
        await expect(page.locator("#steps-title")).to_contain_text(f"of {STEPS}")
        await page.get_by_role("button", name="Edit").last.click()
        await expect(page.get_by_label("Your message")).to_have_value("And the sea?")
        await expect(page.locator(".turn")).to_have_count(1)
        await page.get_by_role("button", name="Regenerate").click()
        await expect(page.locator(".turn[aria-busy=false]")).to_have_count(1)
        await expect(page.locator(".note")).to_contain_text("of 512")
        await page.get_by_role("button", name="New conversation").click()
        await page.reload()
        await expect(page.locator(".turn")).to_have_count(0)


async def test_trees_are_always_shown_if_asked(
    redis_url: str, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner always chooses plain decoding."""
    async with served(redis_url) as (system, http), visit(chromium, http.url) as page:
        (session,) = system.gateway.sessions
        monkeypatch.setattr(session.loop.machine.planner, "choose", lambda batch, contexts: PLAIN)
        await ask(page)
        await expect(page.locator("#facts")).to_contain_text("no guesses")
        await page.get_by_role("button", name="Race").click()
        verdict = page.locator(".verdict.equal")
        await expect(verdict).to_contain_text("The planner chose plain decoding, too")
        await page.get_by_text("Options").click()
        await page.get_by_label("Always show trees").check()
        await page.get_by_text("Options").click()
        await page.get_by_role("button", name="Regenerate").click()
        await expect(page.locator(".turn[aria-busy=false]")).to_have_count(1)
        await expect(page.locator(".token.guessed").first).to_be_visible()
        await expect(page.locator("#facts")).to_contain_text("as you asked: plain decoding would be faster")


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
        await expect(page.locator(".token").first).to_be_visible()
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
