"""Answer requests of `--local` by an `AsyncLLM` with the client's interface."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from specinfer.client import Answer, make_request
from specinfer.client.answer import SpeculationStats, SpeculatorStats, Summary
from specinfer.errors import InvalidInputError
from specinfer.llm import AsyncLLM, RequestOutput, SamplingParams
from specinfer.llm.driver import DEFAULT_PARAMS, Prompt, TextDelta
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.request import Speculation
from specinfer.v1 import generation_pb2
from specinfer.wire.sampling_codec import decode_constraint, decode_sampling

_FINISH = {"stop": FinishReason.STOP_TOKEN, "length": FinishReason.LENGTH, "abort": FinishReason.DEADLINE}


class InProcessClient:
    """Answers requests in this process."""

    def __init__(self, llm: AsyncLLM, names: Sequence[str]) -> None:
        """Create the client; `names[i]` is the name of speculator i."""
        self._llm, self._names = llm, names

    @classmethod
    def load(cls, model: str, **options: Any) -> Self:
        """Load a model; `options` are those of `LLM`."""
        llm = AsyncLLM(model, **options)
        return cls(llm, llm.speculators)

    async def generate(
        self,
        request: generation_pb2.GenerateRequest | str,
        on_text: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> Answer:
        """Answer one request, as `AsyncClient.generate` does."""
        message = make_request(request, **options) if isinstance(request, str) else request
        started, first_s = time.perf_counter(), 0.0

        def show(delta: TextDelta) -> None:
            nonlocal first_s
            first_s = first_s or time.perf_counter() - started
            on_text(delta.text)

        output = await self._llm.generate(
            prompt_of(message), params_of(message), request_id=message.request_id or None, on_delta=show
        )
        return self._answer(output, first_s, time.perf_counter() - started)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._llm.close()

    def _answer(self, output: RequestOutput, first_s: float, total_s: float) -> Answer:
        """Convert an output of `AsyncLLM` to an answer of the client."""
        completion, metrics = output.outputs[0], output.metrics
        assert metrics is not None, "a request that has ended has metrics"
        did, tokens = metrics.speculative_decoding, completion.token_ids
        stats = SpeculationStats(
            did.steps,
            did.drafted,
            did.accepted,
            tuple(did.histogram),
            tuple(
                SpeculatorStats(self._names[number], counts.drafted, counts.accepted, counts.wins)
                for number, counts in sorted(did.speculators.items())
            ),
        )
        return Answer(
            text=completion.text,
            token_ids=tokens,
            logprobs=[
                row[token].logprob for token, row in zip(tokens, completion.logprobs or (), strict=False)
            ],
            summary=Summary(
                _FINISH[completion.finish_reason or "stop"],
                prompt_tokens=len(output.prompt_token_ids),
                cached_tokens=output.num_cached_tokens,
                new_tokens=len(tokens),
                stats=stats,
                ttft_seconds=metrics.first_token_seconds,
                total_seconds=metrics.total_seconds,
                queue_seconds=metrics.queue_seconds,
                seed=metrics.seed,
            ),
            ttft_s=first_s,
            tpot_s=(total_s - first_s) / max(1, len(tokens) - 1),
            request_id=output.request_id,
        )


def prompt_of(message: generation_pb2.GenerateRequest) -> Prompt:
    """Return the prompt of a request."""
    match message.WhichOneof("prompt"):
        case "text":
            return message.text
        case "tokens":
            return list(message.tokens.ids)
        case "chat":
            return {"messages": [{"role": m.role, "content": m.content} for m in message.chat.messages]}
    raise InvalidInputError("prompt", None, "needs text, chat or tokens")


def params_of(message: generation_pb2.GenerateRequest) -> SamplingParams:
    sampling = decode_sampling(message.sampling, default_seed=0)
    seeded = message.sampling.HasField("seed")
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed if seeded else None,
        max_tokens=message.max_new_tokens
        if message.HasField("max_new_tokens")
        else DEFAULT_PARAMS.max_tokens,
        stop=tuple(message.stop_strings),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logprobs=message.top_logprobs if message.logprobs else None,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        constraint=decode_constraint(message.constraint),
        references=tuple(message.references),
        speculation=Speculation(message.speculation or Speculation.TREE).name.lower(),
        typical_epsilon=sampling.typical_epsilon,
        typical_delta=sampling.typical_delta,
        priority=message.priority,
        deadline_seconds=message.deadline_seconds if message.HasField("deadline_seconds") else None,
    )
