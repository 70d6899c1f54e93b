"""`LLM`: token-tree speculation in this process, with vLLM's interface."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.hub import DEFAULT_MODEL
from specinfer.llm.build import Speculators, build_engine
from specinfer.llm.driver import Driver, Prompt, Request, TextDelta
from specinfer.llm.engine import LocalEngine
from specinfer.llm.metrics import Metric
from specinfer.llm.options import LLMOptions
from specinfer.llm.outputs import RequestOutput
from specinfer.llm.params import SamplingParams
from specinfer.model.runner import ModelRunner
from specinfer.text.tokenizer import Tokenizer
from specinfer.verification.acceptance import AcceptanceRule, find_rule


class LLM:
    """A model with speculators, decoding in this process.

    Example:
        llm = LLM("smollm2-135m")
        for output in llm.generate(["Why is the sky blue?"], SamplingParams(temperature=0, max_tokens=64)):
            print(output.outputs[0].text)
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        draft: str | None = None,
        speculators: Speculators | None = None,
        **options: Any,
    ) -> None:
        """Load the model and its speculators.

        Args:
            model: registry name, hub id, directory or GGUF file.
            draft: a smaller model with the same tokenizer, which drafts in addition to n-grams; "auto" (the
                default): a matching model in the cache; "none".
            speculators: list of drafters as `DRAFTER[+DRAFTER...][,FLAG=VALUE...]` and of functions
                `(context, limits) -> TokenTree | None`; replaces the default draft. "off": no speculators.
            options: fields of `LLMOptions`.

        Raises:
            SettingError: for an invalid option.
            TypeError: for an unknown option.
        """
        self._begin(Driver(*build_engine(model, draft, speculators, LLMOptions.of(options))))

    @classmethod
    def of(cls, engine: LocalEngine, tokenizer: Tokenizer) -> Self:
        """Decode on an engine that `specinfer.llm.build.assemble` returned."""
        made = cls.__new__(cls)
        made._begin(Driver(engine, tokenizer))
        return made

    def _begin(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer prompts, batched; outputs are in the order of the prompts.

        Args:
            prompts: one prompt or a list; a prompt is text, token ids or a mapping (`Prompt`).
            sampling_params: for all prompts, or one for each; None: `get_default_sampling_params`.
            use_tqdm: show a progress bar if there are several prompts.

        Raises:
            InvalidInputError: naming the field and value of a prompt that is refused; no prompt runs then.
            SpecInferError: if a fault ended a request.
        """
        prompt_list = cast("Sequence[Prompt]", [prompts] if is_one(prompts) else prompts)
        params = _for_each(sampling_params, len(prompt_list))
        requests = self._submit(
            [
                partial(self._driver.submit, p, sampling)
                for p, sampling in zip(prompt_list, params, strict=True)
            ]
        )
        return self._finish(requests, use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one or several conversations of OpenAI's messages, like `generate`.

        Args:
            messages: messages of one conversation, or of each of several.
            sampling_params: for all conversations, or one for each.
            tools: functions that the model may call.
            chat_template_kwargs: more variables of the chat template, such as `enable_thinking`.
            use_tqdm: show a progress bar if there are several conversations.
        """
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast("Sequence[Sequence[Mapping[str, Any]]]", [messages] if one else messages)
        shared = {"tools": tools, "chat_template_kwargs": chat_template_kwargs}
        prompts: list[Prompt] = [{"messages": conversation, **shared} for conversation in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> "TextStreamOf":
        """Stream an answer's text; closing or dropping the stream ends the request.

        Args:
            request_id: id of the request in logs; seeds the random stream of speculators that draw.

        Raises:
            InvalidInputError: for an invalid field, immediately.
        """
        (request,) = self._submit([partial(self._driver.submit, prompt, sampling_params, request_id)])
        return TextStreamOf(partial(self._advance, request), partial(self._leave, request))

    @property
    def runner(self) -> ModelRunner:
        """The loaded model and its cache, for measurements; idle between calls."""
        return self._driver.engine.verifier.runner

    @property
    def speculators(self) -> list[str]:
        return self._driver.engine.pool.names

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of prompts without any, from `generation_config.json`."""
        return self._driver.default_params

    def get_metrics(self) -> list[Metric]:
        """Return the counters since the start."""
        return self._driver.engine.metrics()

    @property
    def metrics(self) -> dict[str, float]:
        """Values of `get_metrics` by name."""
        return {metric.name: metric.value for metric in self.get_metrics()}

    def use(
        self,
        *,
        draft: str | None = None,
        speculators: Speculators | None = None,
        acceptance: str | AcceptanceRule | None = None,
    ) -> None:
        """Change the drafters or the rule of acceptance; the model stays loaded.

        Args:
            draft: as in `LLM`; with `speculators`, replaces all drafters.
            speculators: as in `LLM`.
            acceptance: rule for sampled prompts, by name, MODULE:NAME, or a function
                `(tree, target, randomness) -> Acceptance`.

        Raises:
            UnavailableError: while requests run.
            SettingError: for an invalid value; nothing changes then.
        """
        engine = self._driver.engine
        with self._lock:
            self._check_open()
            if engine.busy:
                raise UnavailableError("requests run: change drafters and rule between calls")
            rule = None if acceptance is None else find_rule(acceptance)
            if draft is not None or speculators is not None:
                engine.use_drafters(engine.groups_of(draft, speculators))
            if rule is not None:
                engine.verifier.use_rule(rule)

    def close(self) -> None:
        """Free the model; later calls raise UnavailableError."""
        if not self._closed and self._driver.own_process:
            self._closed = True
            self._driver.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _submit(self, submits: Sequence[Callable[[], Request]]) -> list[Request]:
        """Queue all prompts; if one is refused, queue none and raise."""
        requests: list[Request] = []
        self._driver.check_process()  # checked before the lock, which a fork may have copied locked
        with self._lock:
            self._check_open()
            try:
                requests.extend(submit() for submit in submits)
            except Exception:
                self._cancel(requests)
                raise
        return requests

    def _finish(self, requests: Sequence[Request], use_tqdm: bool) -> list[RequestOutput]:
        """Step until the requests have ended; cancel them if interrupted."""
        try:
            with _bar(len(requests), use_tqdm and len(requests) > 1) as advance:
                left = set(requests)
                while left:
                    self._step()
                    done = {request for request in left if request.finished}
                    left -= done
                    advance(len(done))
        finally:
            with self._lock:
                self._cancel(request for request in requests if not request.finished)
        for request in requests:
            if request.error is not None:
                raise request.error
        return [request.output for request in requests]

    def _advance(self, request: Request) -> list[TextDelta]:
        """Step until a request has text or has ended; return the text.

        Another caller's step may have produced the text already.
        """
        while not (deltas := request.take()) and not request.finished:
            self._step()
        if not deltas and request.error is not None:
            raise request.error
        return deltas

    def _leave(self, request: Request) -> None:
        with self._lock:
            self._cancel([request] if not request.finished else [])

    def _step(self) -> None:
        with self._lock:
            self._check_open()
            self._driver.step()

    def _cancel(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._driver.cancel(request)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("this LLM is closed: create a new one")
        self._driver.check_process()


class TextStreamOf:
    """Iterator over the text of one request."""

    def __init__(self, advance: Callable[[], list[TextDelta]], leave: Callable[[], None]) -> None:
        """Iterate over `advance` until it returns nothing; `leave` ends the request."""
        self._advance, self._leave = advance, leave
        self._ready: deque[TextDelta] = deque()
        self._open = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TextDelta:
        if not self._ready and self._open:
            self._ready.extend(self._advance())
        if not self._ready:
            self.close()
            raise StopIteration
        return self._ready.popleft()

    def close(self) -> None:
        """End the request, if it has not ended."""
        if self._open:
            self._open = False
            self._ready.clear()
            self._leave()

    def __del__(self) -> None:
        self.close()


def is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    """Return whether the argument is one prompt, not a list of prompts."""
    return isinstance(prompts, str | Mapping) or (len(prompts) > 0 and hasattr(prompts[0], "__index__"))


def _for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidInputError(
            "sampling_params", len(params), f"must be one, or one for each of {count} prompts", "entries"
        )
    return params


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar on standard error."""
    if not shown:
        yield lambda _: None
        return
    columns = TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("answers", total=total)
        yield lambda count: progress.advance(task, count)
