"""Drive requests of `LLM` and `AsyncLLM` on one engine, in one thread.

`submit` returns a request, `step` advances all requests, `Request.take` returns a request's new text.
"""

import logging
import operator
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from specinfer.errors import FaultError, InvalidInputError, SpecInferError, UnavailableError
from specinfer.llm.engine import LocalEngine
from specinfer.llm.outputs import CompletionBuilder, RequestOutput, metrics_of
from specinfer.llm.params import SamplingParams
from specinfer.text.tokenizer import Tokenizer

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or an object as in vLLM and OpenAI's API.

Objects are {"prompt": text}, {"prompt_token_ids": ids} or a conversation, {"messages": [...]}, with optional
"tools".
"""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one answer."""

    text: str
    token_ids: list[int]
    index: int
    """Number of the answer, from 0 to `n` - 1."""
    finish_reason: str | None
    """None while the answer grows."""


@dataclass(slots=True, eq=False)
class Request:
    """One prompt and its answers."""

    output: RequestOutput
    answers: list[CompletionBuilder]
    error: Exception | None = None
    """Fault that ended the request."""
    _delivered: list[tuple[int, int]] = field(default_factory=list)
    """Number of characters and tokens of each answer that `take` has returned."""
    _ended: set[int] = field(default_factory=set)
    """Numbers of answers whose end `take` has returned."""

    @property
    def finished(self) -> bool:
        """True if the request will have no more text."""
        return self.error is not None or self.output.finished

    def take(self) -> list[TextDelta]:
        """Return the new text and tokens since the last call, by answer."""
        deltas = []
        for place, answer in enumerate(self.answers):
            characters, tokens = self._delivered[place]
            output = answer.output
            self._delivered[place] = len(output.text), len(output.token_ids)
            ended = output.finished and place not in self._ended
            if ended:
                self._ended.add(place)
            if ended or self._delivered[place] != (characters, tokens):
                text, ids = output.text[characters:], output.token_ids[tokens:]
                deltas.append(TextDelta(text, ids, place, output.finish_reason))
        return deltas


class Driver:
    """Submit prompts to an engine, and convert the engine's progress to answers."""

    def __init__(self, engine: LocalEngine, tokenizer: Tokenizer) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.default_params = SamplingParams(**engine.default_sampling)
        """Parameters of prompts without any: `SamplingParams` with the model's defaults."""
        self._requests: dict[str, tuple[Request, CompletionBuilder]] = {}
        """Request and builder of each unfinished answer, by the scheduler's id."""
        self._process = os.getpid()

    @property
    def own_process(self) -> bool:
        """True in the process that created this, False in forked ones."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Raise UnavailableError in a forked process."""
        if not self.own_process:
            raise UnavailableError(
                f"this LLM belongs to process {self._process}, whose threads a forked process does not have: create "
                "an LLM in the new process, and start the process with multiprocessing's method 'spawn'"
            )

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, request_id: str | None = None
    ) -> Request:
        """Queue a prompt.

        Raises:
            InvalidInputError: naming the field and value that cannot be served.
            IncompatibleError: for a conversation, if the model has no chat template.
        """
        text, tokens = self._encode(prompt)
        params = params or self.default_params
        request_id = request_id or secrets.token_hex(8)
        references: list[list[int]] = []
        if self.engine.pool.reads_references and params.speculation != "off":
            references = [self.tokenizer.encode_part(reference) for reference in params.references]
        eos = self.engine.verifier.runner.config.eos_token_ids
        answers: list[CompletionBuilder] = []
        try:
            for choice in range(params.n):
                own_id = request_id if params.n == 1 else f"{request_id}-{choice}"
                state = self.engine.submit(params.request(own_id, tokens, eos, references, choice))
                answers.append(CompletionBuilder(state, self.tokenizer, choice))
        except Exception:
            for answer in answers:
                self.engine.cancel(answer.state.request.request_id)
            raise
        output = RequestOutput(request_id, text, list(tokens), [answer.output for answer in answers])
        request = Request(output, answers, _delivered=[(0, 0)] * len(answers))
        for answer in answers:
            self._requests[answer.state.request.request_id] = (request, answer)
        return request

    def step(self) -> list[Request]:
        """Advance every request by one step; return the changed ones."""
        changed: dict[int, Request] = {}
        for progress in self.engine.step():
            known = self._requests.get(progress.request_id)
            if known is None:
                continue  # cancelled
            request, answer = known
            changed[id(request)] = request
            try:
                answer.add(progress)
            except Exception as error:  # a fault in a request's text ends only this request
                log.exception("decoding the text of request %s failed; the request ends", progress.request_id)
                self._fail(request, FaultError("internal error", error))
                continue
            if progress.final:
                self._end(request, answer)
        return list(changed.values())

    def _fail(self, request: Request, error: SpecInferError) -> None:
        """End all answers of a request with an error."""
        request.error = error
        self.cancel(request)

    def cancel(self, request: Request) -> None:
        """End a request with the tokens generated so far."""
        for answer in request.answers:
            request_id = answer.state.request.request_id
            if self._requests.pop(request_id, None) is not None:
                self.engine.cancel(request_id)

    def _end(self, request: Request, answer: CompletionBuilder) -> None:
        del self._requests[answer.state.request.request_id]
        error = answer.end()
        if error is not None:
            self._fail(request, error)
        elif request.finished and request.error is None:
            request.output.metrics = metrics_of([one.state for one in request.answers])
            request.output.num_cached_tokens = request.answers[0].state.cached_tokens

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Return a prompt's text (None if given otherwise) and token ids."""
        if isinstance(prompt, Mapping):
            if "messages" in prompt and set(prompt) <= {"messages", "tools", "chat_template_kwargs"}:
                tools, variables = prompt.get("tools", ()), prompt.get("chat_template_kwargs")
                return None, self.tokenizer.encode_chat(prompt["messages"], tools, variables=variables)
            known = {"prompt", "prompt_token_ids"} & set(prompt)
            if len(prompt) != 1 or not known:
                raise InvalidInputError(
                    "prompt", sorted(prompt), "must have the key prompt, prompt_token_ids or messages"
                )
            return self._encode(prompt[known.pop()])
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt)
        try:
            return None, [operator.index(token) for token in prompt]
        except TypeError as error:
            reason = "must be text, token ids or a mapping"
            raise InvalidInputError("prompt", type(prompt).__name__, reason) from error
