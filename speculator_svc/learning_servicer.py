"""gRPC servicer of the learner: convert messages."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from specinfer.errors import SpecInferError
from specinfer.v1 import learning_pb2, learning_pb2_grpc
from specinfer.wire.status import abort

if TYPE_CHECKING:
    from specinfer.training.online.learner import Learner

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class LearningServicer(learning_pb2_grpc.LearningServicer):
    """Servicer of `specinfer.v1.Learning`."""

    def __init__(self, learner: "Learner") -> None:
        self._learner = learner

    async def Replay(
        self, request: learning_pb2.ReplayRequest, context: Context
    ) -> AsyncIterator[learning_pb2.Episode]:
        replay = self._learner.replay
        for episode in replay.training(request.after):
            yield learning_pb2.Episode(
                number=episode.number,
                token_ids=episode.tokens,
                prompt_len=episode.prompt_len,
                caller=episode.caller,
                expires_seconds=round(replay.expires_s(episode)),
            )

    async def Offer(
        self, requests: AsyncIterator[learning_pb2.CheckpointPart], context: Context
    ) -> learning_pb2.OfferReply:
        """Receive and judge a checkpoint."""
        try:
            return await self._learner.offer(requests)
        except SpecInferError as error:
            await abort(context, error)
