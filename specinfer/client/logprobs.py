"""Log-probabilities of generated tokens, as plain values."""

from dataclasses import dataclass

from specinfer.v1 import generation_pb2


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its log-probability under the target itself, whatever speculation proposed."""

    token_id: int
    token: bytes
    """What it adds to the text: of a special token its name, of a part of a character its bytes."""
    logprob: float

    @property
    def text(self) -> str:
        """The token as text; a part of a character as OpenAI's API writes it, `bytes:\\xe2\\x82`."""
        try:
            return self.token.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join([f"\\x{byte:02x}" for byte in self.token])


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """At the place of one generated token."""

    chosen: TokenLogprob
    """The generated token."""
    top: tuple[TokenLogprob, ...] = ()
    """The most probable tokens, most probable first, if asked for."""


def read_logprobs(reply: generation_pb2.GenerateReply) -> tuple[TokenLogprobs, ...]:
    """Those of a reply; none if they were not asked for."""
    if not reply.token_bytes:
        return ()
    chosen = map(TokenLogprob, reply.token_ids, reply.token_bytes, reply.logprobs)
    tops = [
        tuple(map(TokenLogprob, row.token_ids, row.token_bytes, row.logprobs)) for row in reply.top_logprobs
    ]
    if not tops:
        return tuple([TokenLogprobs(token) for token in chosen])
    return tuple(map(TokenLogprobs, chosen, tops))
