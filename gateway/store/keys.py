"""All Redis keys. `specinfer:2` is the version of their format.

request:<id>        hash: content, caller, owner, at which gateways it is read, how it ended
tokens:<id>         text: generated token ids, each in a field of eight characters
logprobs:<id>       text: their log-probabilities, if wanted, each in a field of sixteen characters; after
                    each the most probable tokens, if wanted: ids and log-probabilities in such fields
owned:<gateway>     sorted set: unfinished requests of a gateway, by time of arrival
unowned             sorted set: unfinished requests without an owner, by when they lost it
waiting:<model>:<caller>
                    sorted set: those of one caller that began with a model (or not yet), by time of arrival
turns:<model>       sorted set: callers that have such, by the arrival of their oldest
deadlines           sorted set: all without an owner, by their deadline
gateways            set: ids of gateways that own something or are alive
gateway:<id>        text: a gateway's report; its lease, by its time to live
verifier:<instance> text: "<gateway> <fence>"; the lease of a verifier, by its time to live
cancels:<gateway>   set: its requests that somebody wants cancelled
open:<caller>       set: unfinished requests of a caller
rate:<caller>:<m>   number: tokens generated for a caller in minute m
fence               number: the highest fence so far
epoch               text: drawn at random when it is missing; another one means that Redis lost its data
"""

PREFIX = "specinfer:2:"
OPEN_TTL_S = 24 * 3600
"""Longest that an unfinished request stays."""
TOKEN_WIDTH = 8
"""Characters per token: any id below 10^8."""
LOGPROB_WIDTH = 16
"""Characters per log-probability: a float32 in nine digits."""


def logprobs_width(top: int) -> int:
    """Return characters per generated token, with so many most probable ones."""
    return LOGPROB_WIDTH + top * (TOKEN_WIDTH + LOGPROB_WIDTH)


def request_key(request_id: str) -> str:
    """Return the key of a request's content, owner and ending."""
    return f"{PREFIX}request:{request_id}"


def tokens_key(request_id: str) -> str:
    """Return the generated tokens."""
    return f"{PREFIX}tokens:{request_id}"


def logprobs_key(request_id: str) -> str:
    """Return their log-probabilities."""
    return f"{PREFIX}logprobs:{request_id}"


def verifier_key(instance_id: str) -> str:
    """Return the lease of a verifier."""
    return f"{PREFIX}verifier:{instance_id}"


def owned_key(gateway_id: str) -> str:
    """Return the unfinished requests of a gateway."""
    return f"{PREFIX}owned:{gateway_id}"
