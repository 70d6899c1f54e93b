"""How a request can fail for whoever asked."""

import grpc

from specinfer.client.failure import Failure
from specinfer.errors import SpecInferError, UnavailableError

_BAD_INPUT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND)


class RequestFailedError(SpecInferError):
    """The gateway refused or ended a request with a status that trying again does not cure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    @property
    def bad_input(self) -> bool:
        """Whether the mistake is in what was asked for."""
        return self.failure.code in _BAD_INPUT


class StreamLostError(UnavailableError):
    """No gateway could be made to go on with a request for as long as the client is patient.

    The request may still run or have ended well: `AsyncClient.attach(request_id, from_token)` goes on
    with it.
    """

    def __init__(self, gateway: str, failure: Failure, request_id: str, from_token: int) -> None:
        super().__init__(f"gateway at {gateway}: {failure.details or failure.code.name}")
        self.failure, self.request_id, self.from_token = failure, request_id, from_token


class BrokenStreamError(SpecInferError):
    """A gateway broke the contract of streams: tokens are missing, or come partly twice."""

    def __init__(self, request_id: str, position: int, expected: int, why: str) -> None:
        super().__init__(f"request {request_id}: position = {position} after {expected} tokens: {why}")
        self.request_id, self.position, self.expected = request_id, position, expected
