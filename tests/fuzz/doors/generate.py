"""Fuzzing target for clients' messages: `GenerateRequest`.

A message is refused with a short, typed error, or its request gives the answer of plain decoding. Unmutated
requests run in the same batch.
"""

from random import Random

import grpc

from gateway.api.callers import ANYBODY
from gateway.api.decode import RequestDecoder
from specinfer.errors import SpecInferError
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest
from specinfer.scheduling.text import StopStrings, TextStream
from specinfer.v1 import common_pb2, generation_pb2
from specinfer.wire.status import status_of
from tests.fuzz.doors.door import Episode
from tests.fuzz.gateway_core import GatewayCore, untouched
from tests.fuzz.mutator import Mutator
from tests.fuzz.services import Services
from tests.fuzz.table_target import TableTarget
from tests.fuzz.traffic import Expectation, expectation, new_request
from tests.support.system import EOS, VOCABULARY, ascii_tokenizer

_MESSAGES = 40
_LONGEST_CONTEXT = 48
_MAX_DETAILS = 2048
"""Maximum bytes of an error, as gRPC sends it in a header of limited size."""
_MAX_STEPS = 400


def make_decoder() -> RequestDecoder:
    return RequestDecoder(ascii_tokenizer(), VOCABULARY, _LONGEST_CONTEXT, (EOS,))


class GenerateDoor:
    """Target that decodes mutated messages and runs accepted requests."""

    def __init__(self) -> None:
        self._decoder, self._target, self._tokenizer = make_decoder(), TableTarget(), ascii_tokenizer()
        self._services = Services(self._target)

    async def run(self, episode: Episode) -> None:
        """Implement `Door.run`."""
        self._services.reseed(Random(episode.rng.random()))
        stops = StopStrings(self._tokenizer)
        core = GatewayCore(self._services, (0,), untouched, untouched, adaptive=False, stops=stops)
        await core.open()
        try:
            await self._run(core, episode)
        finally:
            await core.close()
        self._services.check_empty()

    async def _run(self, core: GatewayCore, episode: Episode) -> None:
        mutator, under_way = Mutator(episode.rng), dict[str, Expectation]()
        texts: dict[str, TextStream] = {}
        for number in range(_MESSAGES):
            spoilt = episode.spoilt(mutator.mutated(_message(f"m{number}", episode.rng)))
            requests = [await self._accepted(type(spoilt).FromString(spoilt.SerializeToString()), episode)]
            if number % 10 == 0:
                requests.append(new_request(f"good-{number}", episode.rng))
            for request in requests:
                if request is not None and request.request_id not in under_way:
                    under_way[request.request_id] = expectation(core.submit(request), self._target)
                    texts[request.request_id] = TextStream(self._tokenizer, request.stop_strings)
        for _ in range(_MAX_STEPS):
            if not under_way:
                return
            for item in await core.step():
                self._publish(item, texts)
            for name, expected in list(under_way.items()):
                self._check(expected)
                if expected.state.finish is not None:
                    del under_way[name]
        raise AssertionError(f"these never end: {[e.state for e in under_way.values()]}")

    async def _accepted(
        self, message: generation_pb2.GenerateRequest, episode: Episode
    ) -> GenerationRequest | None:
        try:
            return await self._decoder.decode(message, ANYBODY)
        except SpecInferError as error:
            refusal = error
        episode.refused += 1
        assert status_of(refusal) is not grpc.StatusCode.INTERNAL, f"refused without a reason: {refusal!r}"
        size = len(str(refusal).encode())
        assert size <= _MAX_DETAILS, f"an error of {size} bytes"
        return None

    def _publish(self, item: Progress, texts: dict[str, TextStream]) -> None:
        """Check that a stop string ends the request, and that no text contains one."""
        request = item.state.request
        piece = texts[request.request_id].push(item.tokens, last=item.final)
        assert not any(stop in piece.text for stop in request.stop_strings), (
            f"{piece.text!r} has a stop string"
        )
        if piece.stopped:
            assert (item.final, piece.used) == (True, len(item.tokens)), "tokens after a stop string"

    def _check(self, expected: Expectation) -> None:
        """Check an answer; one ended by a stop string must contain it, and may be shorter."""
        state = expected.state
        if state.finish is FinishReason.STOP_STRING and expected.right is not None:
            text = self._tokenizer.decode(state.tokens[len(state.request.prompt) :])
            assert any(stop in text for stop in state.request.stop_strings), f"{text!r} has no stop string"
            expected.right = expected.right[: state.new_tokens]
        expected.check()


def _message(name: str, rng: Random) -> generation_pb2.GenerateRequest:
    """Return a valid message with random fields of every kind."""
    message = generation_pb2.GenerateRequest(
        request_id=name,
        sampling=common_pb2.SamplingParams(temperature=rng.choice((0.0, 0.7, 1.0)), top_k=rng.choice((0, 5))),
        stop_strings=rng.choice(((), ("a",), ("xy", "!"))),
        stop_token_ids=rng.choice(((), (5, 6))),
        ignore_eos=rng.random() < 0.5,
        priority=rng.choice((0, 1)),
        speculation=rng.choice(generation_pb2.Speculation.values()),
        logprobs=rng.random() < 0.3,
    )
    if rng.random() < 0.8:
        message.max_new_tokens = rng.choice((1, 4, 9))
    if rng.random() < 0.5:
        message.sampling.seed = rng.randrange(2**64)
    kind = rng.choice(("text", "chat", "tokens"))
    if kind == "text":
        message.text = "".join(rng.choices("abc xyz", k=rng.randint(1, 20)))
    elif kind == "chat":
        for role in ("system", "user"):
            message.chat.messages.add(role=role, content="".join(rng.choices("abc ", k=8)))
    else:
        message.tokens.ids.extend(rng.choices(range(VOCABULARY), k=rng.randint(1, 12)))
    return message
