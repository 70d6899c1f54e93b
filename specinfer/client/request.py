"""Messages of requests."""

import secrets

from specinfer.v1 import common_pb2, generation_pb2

SPECULATION = {
    "tree": generation_pb2.SPECULATION_TREE,
    "sequence": generation_pb2.SPECULATION_SEQUENCE,
    "off": generation_pb2.SPECULATION_OFF,
}


def new_request_id() -> str:
    """An id that nobody else chooses or guesses: whoever knows it may attach, where there are no keys."""
    return secrets.token_hex(12)


def make_request(
    prompt: str,
    *,
    chat: bool = True,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    speculation: str = "tree",
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: list[str] | None = None,
    ignore_eos: bool = False,
    logprobs: bool = False,
    request_id: str = "",
    deadline_seconds: float | None = None,
    typical_epsilon: float = 0.0,
) -> generation_pb2.GenerateRequest:
    """The message of a request; the gateway checks the values.

    Args:
        chat: whether the prompt is a user's turn; else it is continued as it is.
        speculation: one of `SPECULATION`.
        seed: None: drawn at random by the gateway.
        request_id: empty: chosen by the client.
        deadline_seconds: after which the request ends with the tokens it has.
        typical_epsilon: threshold of typical acceptance, which is not lossless; 0: lossless.
    """
    request = generation_pb2.GenerateRequest(
        request_id=request_id,
        max_new_tokens=max_new_tokens,
        sampling=common_pb2.SamplingParams(
            temperature=temperature, top_k=top_k, top_p=top_p, typical_epsilon=typical_epsilon
        ),
        stop_strings=stop or [],
        ignore_eos=ignore_eos,
        speculation=SPECULATION[speculation],
        logprobs=logprobs,
        deadline_seconds=deadline_seconds,
    )
    if seed is not None:
        request.sampling.seed = seed
    if chat:
        request.chat.messages.add(role="user", content=prompt)
    else:
        request.text = prompt
    return request
