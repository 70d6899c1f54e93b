"""The planner's two policies, by the setting that chooses one: what predicts accepted tokens."""

from collections.abc import Mapping, Sequence

from gateway.api.conversation import TextMatches
from specinfer.planning.acceptance import AcceptanceModel
from specinfer.planning.learned import LearnedAcceptance
from specinfer.planning.linear import LinearModel
from specinfer.scheduling.request import RequestState


def acceptance_model(
    policy: str,
    trained: Mapping[str, LinearModel],
    names: Sequence[str],
    states: Mapping[str, RequestState],
) -> AcceptanceModel:
    """A session's.

    Args:
        policy: `measured` or `learned`.
        trained: weights of the learned one, by speculator set.
        names: of the speculators by number; the pool goes on filling them.
        states: of the session's requests; their scheduler goes on changing them.
    """
    if policy == "measured":
        return AcceptanceModel()
    return LearnedAcceptance(trained, names, TextMatches(lambda name: states[name].tokens))
