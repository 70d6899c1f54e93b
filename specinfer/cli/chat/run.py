"""`specinfer run`: chat with a model in the terminal."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, ClassVar

import typer

from specinfer.cli.chat.conversation import Chat, ask_again_and_again
from specinfer.cli.connection import API_KEY_VARIABLE, Connection
from specinfer.cli.local.processes import Child
from specinfer.cli.local.running import pull
from specinfer.cli.options.request import RequestFlags
from specinfer.cli.options.shared import AccessFlags, Address, refuse_with, was_given
from specinfer.cli.show import note, waiting
from specinfer.cli.status import get_status
from specinfer.client.described import draft_words
from specinfer.errors import SpecInferError
from specinfer.hub import DEFAULT_MODEL
from specinfer.hub.pull import must_be_pulled
from specinfer.hub.resolve import model_name, names_file, resolve_model
from specinfer.options.flag_groups import LOCAL
from specinfer.options.model_options import AUTO_DRAFT, Draft, Option, ServedOptions, as_text
from specinfer.request.fields import INT32, TEXT
from specinfer.system.running import RunningServer, running_servers
from specinfer.text.prompts import check_text, read_prompt

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="Registry name, hub id, directory or GGUF file; fetched if need be. Not given: the model of the server "
        f"that you started last, else {DEFAULT_MODEL}."
    ),
]
PromptArgument = Annotated[
    str | None, typer.Argument(help="Answer this, and end; also standard input, if it is no terminal.")
]
MaxNewTokens = Annotated[int, INT32, Option("Maximum tokens of an answer.", TEXT)]
System = Annotated[str, typer.Option(help="Instruction that precedes the conversation.")]


@dataclass(frozen=True)
class ChatFlags(RequestFlags):
    """Fields of a chat's requests."""

    not_flags: ClassVar[tuple[str, ...]] = (*RequestFlags.not_flags, "request_id", "logprobs")

    max_new_tokens: MaxNewTokens = 512


@dataclass(frozen=True)
class LoadFlags(ServedOptions):
    """Options of a model that `run` loads itself."""

    panel: ClassVar[str] = LOCAL
    not_flags: ClassVar[tuple[str, ...]] = ("model",)

    draft: Draft = AUTO_DRAFT


_POLL_S = 0.05
_LOAD = tuple(field.name for field in fields(LoadFlags) if field.name != "model")


def run(
    context: typer.Context,
    model: ModelArgument = None,
    prompt: PromptArgument = None,
    system: System = "",
    *,
    request: ChatFlags,
    address: Address = None,
    access: AccessFlags,
    load: LoadFlags,
) -> None:
    """Chat with a model in the terminal: /help in the chat lists its commands.

    A running server with the model answers; else the model is loaded for this chat.
    """
    if address is not None:
        refuse_with(context, _LOAD, "cannot be used with --address: a server keeps its own setting")
    check_text("system", system)
    own = any(was_given(context, name) for name in _LOAD)
    if address is not None or (not own and (address := _serving(model)) is not None):
        connection = access.reach(address).check()
        _chat(connection, Chat(request, system), prompt)
        return
    with _loaded(replace(load, model=model or DEFAULT_MODEL)) as server:
        note(f"also at {server.url}/")
        _chat(access.connection(server.address), Chat(request, system), prompt)


def _chat(connection: Connection, chat: Chat, prompt: str | None) -> None:
    """Answer one prompt, or the user's turn by turn."""
    if prompt is None and not sys.stdin.isatty():
        prompt = read_prompt(None)
    with asyncio.Runner() as runner:
        client = connection.client()
        try:
            if prompt is not None:
                runner.run(chat.ask(client, check_text("prompt", prompt)))
                return
            state = runner.run(client.status())
            note(f"{state.model}, {draft_words(state)}, context {state.max_context_len}; /help for help")
            chat.context = state.max_context_len
            ask_again_and_again(chat, lambda text: runner.run(chat.ask(client, text)))
        finally:
            runner.run(client.close())


def _serving(model: str | None) -> str | None:
    """Return the address of this user's latest server of a model (None: of any)."""
    wanted = None if model is None else model_name(model)
    for server in reversed(running_servers()):
        with suppress(SpecInferError):
            state = get_status(Connection(server.address, os.environ.get(API_KEY_VARIABLE)))
            if wanted in (None, state.model):
                return server.address
    return None


@contextmanager
def _loaded(options: LoadFlags) -> Iterator[RunningServer]:
    """Serve a model in a child process, at a free port of loopback."""
    if must_be_pulled(options.model):
        pull(options.model)
    elif not names_file(options.model):
        resolve_model(options.model)  # an unknown name is found before a process starts
    usual = asdict(LoadFlags())
    given = {
        name: value for name, value in asdict(options).items() if value != usual[name] or name == "model"
    }
    command = [sys.executable, "-m", "all_in_one", "--listen", "127.0.0.1:0"]
    command += [
        part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", as_text(value))
    ]
    with TemporaryDirectory(prefix="specinfer-") as folder:
        child = Child("serve", command, Path(folder) / "serve.log", {})
        try:
            with waiting(f"loading {options.model}") as report:
                server = _ready(child, report)
            yield server
        finally:
            child.terminate()
            child.join(timeout_s=10.0)


def _ready(child: Child, report: Callable[[str], None]) -> RunningServer:
    """Wait until the child has announced itself."""
    shown = ""
    while True:
        child.check()
        if (progress := child.progress()) != shown:
            report(shown := progress)
        for server in running_servers():
            if server.pid == child.pid:
                return server
        time.sleep(_POLL_S)
