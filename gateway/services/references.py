"""References on their way to the speculator services that read them: with the first message about a request,
and again where a service starts over. Pure."""

from collections.abc import Mapping, Sequence

from specinfer.v1 import speculator_pb2

_MOST_TOKENS = 2**20
"""In one message: 3 MiB, beside 8 MiB of features, of 16 MiB at most. A request has 2**17 at most."""


def add_references(
    entries: Sequence[speculator_pb2.DraftEntry], references: Mapping[str, Sequence[Sequence[int]]]
) -> None:
    """Gives each entry that starts over the references of its request. They are a hint: what is more than
    its share of the message is left out."""
    starting = [entry for entry in entries if entry.base_len == 0]
    for entry in starting:
        left = _MOST_TOKENS // len(starting)
        for text in references[entry.request_id]:
            if left:
                entry.references.add(token_ids=text[:left])
            left -= min(left, len(text))
