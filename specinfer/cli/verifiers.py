"""What a verifier says of itself."""

import grpc

from specinfer.errors import UnavailableError
from specinfer.v1 import verifier_pb2, verifier_pb2_grpc

_TIMEOUT_S = 5.0


def describe_verifier(address: str) -> verifier_pb2.DescribeVerifierReply:
    """The verifier at an address.

    Raises:
        UnavailableError: if it does not answer.
    """
    with grpc.insecure_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)  # type: ignore[no-untyped-call]
        try:
            told: verifier_pb2.DescribeVerifierReply = stub.Describe(
                verifier_pb2.DescribeVerifierRequest(), timeout=_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise UnavailableError(f"the verifier at {address} does not answer") from error
    return told
