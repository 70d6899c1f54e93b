"""The conversation of `specinfer run`: its commands, its lines, its answers."""

import readline
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from specinfer.cli.chat.marked import legend, print_marked
from specinfer.cli.show import answer_line, note, output
from specinfer.client import Answer, AsyncClient
from specinfer.client.options import checked
from specinfer.errors import InvalidInputError, SpecInferError
from specinfer.request.fields import RequestFields
from specinfer.system.cache_directory import cache_directory

HELP = '''/help               this text
/system TEXT        set the instruction before the conversation; without TEXT: remove it
/set NAME VALUE     set a field of requests, for example temperature 0.7; without NAME: show them
/retry              answer the last message again
/clear              begin a new conversation
/bye                end, as Ctrl-D
"""                 begin and end a message of several lines
Ctrl-C              stop an answer
'''
_MORE = '"""'
_KEPT_LINES = 1000
"""Number of lines in the history file."""


class Chat:
    """A conversation; `ask` answers its next message."""

    def __init__(self, request: RequestFields, system: str = "", context: int = 0) -> None:
        """Begin a conversation; `context` is the longest of the model in tokens, 0: unknown."""
        self.request, self.system, self.context = request, system, context
        self.messages: list[dict[str, str]] = []
        self._explained = False

    async def ask(self, client: AsyncClient, text: str) -> None:
        """Stream the answer to a message; a message without a whole answer is left out."""
        if not self._explained and output.is_terminal:
            output.print(legend(await client.status()))
            self._explained = True
        before = [{"role": "system", "content": self.system}] if self.system else []
        asked = {"role": "user", "content": text}
        answer = await print_marked(client, [*before, *self.messages, asked], self.request)
        self.messages += [asked, {"role": "assistant", "content": answer.text}]
        note(self._costs(answer))

    def _costs(self, answer: Answer) -> str:
        rate = f", {1 / answer.tpot_s:.1f} tokens/s" if answer.tpot_s else ""
        used = answer.summary.prompt_tokens + answer.summary.new_tokens
        return f"{answer_line(answer)}{rate}, context {used}" + (
            f" of {self.context}" if self.context else ""
        )

    def command(self, line: str) -> str | None:
        """Carry out a command, and return the message to answer; None: no message.

        Raises:
            InvalidInputError: for an unknown command, field or value.
            EOFError: if the conversation ends.
        """
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name in ("/bye", "/exit", "/quit"):
            raise EOFError
        if name in ("/help", "/?"):
            output.print(HELP, markup=False, highlight=False, end="")
        elif name == "/clear":
            self.messages = []
        elif name == "/system":
            self.system = rest
        elif name == "/set":
            self._set(*rest.partition(" ")[::2])
        elif name == "/retry" and self.messages:
            *self.messages, asked, _ = self.messages
            return asked["content"]
        else:
            raise InvalidInputError(
                "command", name, "nothing to answer again" if name == "/retry" else "see /help"
            )
        return None

    def _set(self, name: str, value: str) -> None:
        name = name.replace("-", "_").lstrip("_")
        if not name:
            for field, setting in vars(self.request).items():
                if isinstance(setting, int | float | str) and not isinstance(setting, bool):
                    note(f"{field} {setting}")
            return
        kinds = get_type_hints(RequestFields)
        if name not in kinds:
            raise InvalidInputError("/set", name, "is no field of requests: /set lists them")
        try:
            read = TypeAdapter[Any](kinds[name]).validate_python(value.strip())
        except ValidationError as error:
            raise InvalidInputError(name, value.strip(), error.errors()[0]["msg"]) from error
        changed = replace(self.request, **{name: read})
        checked(vars(changed))
        self.request = changed


def ask_again_and_again(chat: Chat, answer: Callable[[str], None]) -> None:
    """Read messages and commands from the terminal, until its end."""
    with _history():
        while True:
            try:
                text = _message()
                if text.startswith("/"):
                    text = chat.command(text) or ""
                if text:
                    answer(text)
            except EOFError:
                return
            except KeyboardInterrupt:
                note("\nstopped; Ctrl-D or /bye ends the chat")
            except SpecInferError as error:
                note(str(error))


def _message() -> str:
    """Read a message: a line, or several between triple quotes."""
    text = input(">>> ").strip()
    if not text.startswith(_MORE):
        return text
    text = text.removeprefix(_MORE)
    while not text.rstrip().endswith(_MORE):
        text += "\n" + input("... ")
    return text.rstrip().removesuffix(_MORE).strip()


@contextmanager
def _history() -> Iterator[None]:
    """Keep the lines of earlier chats in a file of this user."""
    file = cache_directory() / "chat-history"
    with suppress(OSError):  # none yet
        readline.read_history_file(file)
    readline.set_history_length(_KEPT_LINES)
    try:
        yield
    finally:
        try:
            file.touch(mode=0o600)
            readline.write_history_file(file)
        except OSError as error:
            note(f"the history is not kept: {file}: {error.strerror}")
