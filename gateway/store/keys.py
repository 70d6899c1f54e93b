"""Define all Redis keys. The prefix `specinfer:2` contains the format's version.

request:<id>        hash: content, caller, owner, gateways with readers, state, end
tokens:<id>         text: generated token ids, each in eight characters
logprobs:<id>       text: their log-probabilities, if requested, each in sixteen characters, followed by the
                    alternatives, if requested: ids and log-probabilities in the same widths
owned:<gateway>     sorted set: unfinished requests of a gateway, by time of arrival
unowned             sorted set: unfinished requests without an owner, by time of the owner's loss
waiting:<model>:<caller>
                    sorted set: a caller's unowned requests begun with a model (empty: not begun), by arrival
turns:<model>       sorted set: callers with such requests, by arrival of their oldest
deadlines           sorted set: all unowned requests, by deadline
gateways            set: ids of gateways that live or own requests
gateway:<id>        text: a gateway's report; its time to live is the gateway's lease
verifier:<instance> text: "<gateway> <fence>"; its time to live is the verifier's lease
cancels:<gateway>   set: cancelled requests that the gateway must end
open:<caller>       set: unfinished requests of a caller
rate:<caller>:<m>   number: tokens generated for a caller in minute m
fence               number: the highest fence so far
epoch               text: random, set when missing; a changed value means that Redis lost its data
"""

PREFIX = "specinfer:2:"
OPEN_TTL_S = 24 * 3600
"""Maximum seconds that an unfinished request stays."""
TOKEN_WIDTH = 8
"""Characters per token id, which is below 10^8."""
LOGPROB_WIDTH = 16
"""Characters per log-probability: nine significant digits for a float32."""


def request_key(request_id: str) -> str:
    """Return the key of a request's content, owner and ending."""
    return f"{PREFIX}request:{request_id}"


def tokens_key(request_id: str) -> str:
    """Return the key of a request's generated tokens."""
    return f"{PREFIX}tokens:{request_id}"


def logprobs_key(request_id: str) -> str:
    """Return the key of a request's log-probabilities."""
    return f"{PREFIX}logprobs:{request_id}"


def verifier_key(instance_id: str) -> str:
    """Return the key of a verifier's lease."""
    return f"{PREFIX}verifier:{instance_id}"


def owned_key(gateway_id: str) -> str:
    """Return the key of a gateway's unfinished requests."""
    return f"{PREFIX}owned:{gateway_id}"
