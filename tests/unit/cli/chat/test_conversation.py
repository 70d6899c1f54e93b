"""The conversation of `specinfer run`: commands, lines, and what is kept of an answer."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from specinfer.cli.chat import conversation
from specinfer.cli.chat.conversation import Chat, ask_again_and_again
from specinfer.client import Answer, AsyncClient
from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.request.answer import Summary
from specinfer.request.fields import RequestFields


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """List of the prompts of answers, each of which is "yes"."""
    prompts: list[Any] = []

    async def answer(client: AsyncClient, prompt: Any, request: RequestFields) -> Answer:
        prompts.append(prompt)
        return Answer("yes", summary=Summary(prompt_tokens=3, new_tokens=4))

    monkeypatch.setattr(conversation, "print_marked", answer)
    return prompts


def ask(chat: Chat, text: str) -> None:
    asyncio.run(chat.ask(cast(AsyncClient, None), text))


def test_a_message_follows_the_system_prompt_and_the_conversation(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    chat = Chat(RequestFields(), "be brief", context=512)
    ask(chat, "one?")
    assert "context 7 of 512" in capsys.readouterr().err
    ask(chat, "two?")
    roles = [(turn["role"], turn["content"]) for turn in asked[-1]]
    assert roles == [("system", "be brief"), ("user", "one?"), ("assistant", "yes"), ("user", "two?")]
    assert chat.command("/retry") == "two?"
    assert len(chat.messages) == 2
    assert chat.command("/clear") is None
    assert chat.command("/system") is None
    ask(chat, "three?")
    assert asked[-1] == [{"role": "user", "content": "three?"}]


def test_fields_of_requests_are_set_within_their_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    chat = Chat(RequestFields())
    chat.command("/set temperature 0.7")
    chat.command("/set max-new-tokens 9")
    assert (chat.request.temperature, chat.request.max_new_tokens) == (0.7, 9)
    chat.command("/set")
    assert "temperature 0.7" in capsys.readouterr().err
    for line, named in [
        ("/set temperature x", "temperature = 'x'"),
        ("/set colour red", "'colour'"),
        ("/what", "'/what': see /help"),
        ("/retry", "nothing to answer again"),
    ]:
        with pytest.raises(InvalidInputError, match=named):
            chat.command(line)
    assert chat.request.temperature == 0.7


def test_lines_are_read_until_the_end_and_a_failure_ends_no_chat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    lines = iter(
        ['"""two', "  lines", 'more"""', "", "/help", "fails", "stops", "/nope", "last", "/bye", "not read"]
    )
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    heard: list[str] = []

    def answer(text: str) -> None:
        heard.append(text)
        if text == "fails":
            raise UnavailableError("no gateway")
        if text == "stops":
            raise KeyboardInterrupt

    ask_again_and_again(Chat(RequestFields()), answer)
    assert heard == ["two\n  lines\nmore", "fails", "stops", "last"]
    assert next(lines) == "not read"
    out, err = capsys.readouterr()
    assert "/set NAME VALUE" in out
    assert "no gateway" in err
    assert "see /help" in err
    assert (tmp_path / "chat-history").stat().st_mode & 0o777 == 0o600


@pytest.fixture(autouse=True)
def no_history() -> Iterator[None]:
    """Leave no lines of a test in the history of this process."""
    yield
    conversation.readline.clear_history()
