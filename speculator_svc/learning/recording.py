"""Part of the messages of a step that the replay gets."""

from collections.abc import Sequence

from specinfer.drafters.entries import DraftOutcome
from specinfer.statuses import EntryStatus
from specinfer.v1 import speculator_pb2
from speculator_svc.clients import own_id
from speculator_svc.learning.replay import Replay

MOST_TEMPERATURE = 1.0
"""Texts drawn at higher temperatures are not kept: they are noise rather than what the target thinks."""


def record(replay: Replay, request: speculator_pb2.DraftRequest, outcomes: Sequence[DraftOutcome]) -> None:
    """Note the context tokens of entries that were served and whose callers allow it."""
    served = {outcome.request_id for outcome in outcomes if outcome.status is EntryStatus.OK}
    for entry in request.entries:
        own = own_id(request.client, entry.request_id)
        if own not in served:
            continue
        if entry.base_len:
            replay.go_on(own, entry.base_len, entry.delta_token_ids)
            continue
        replay.forget(own)  # an earlier request of this id, whose release was lost
        if entry.HasField("learning") and entry.sampling.temperature <= MOST_TEMPERATURE:
            consent = entry.learning
            replay.begin(own, consent.caller, consent.prompt_len, entry.delta_token_ids)
