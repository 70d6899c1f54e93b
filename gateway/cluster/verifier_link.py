"""Connect to a verifier at one address, and describe it."""

import grpc

from gateway.session.verifier import VerifierClient
from specinfer.errors import IncompatibleError, UnavailableError
from specinfer.service.channel import open_channel
from specinfer.service.tls import ClientTls
from specinfer.v1 import verifier_pb2


class VerifierLink:
    """Connection to a verifier at one address, and its description."""

    def __init__(
        self, address: str, fingerprints: tuple[str, str], hung_s: float, tls: ClientTls | None = None
    ) -> None:
        """Create a link.

        `fingerprints` are the gateway's `Tokenizer.fingerprint` and `Tokenizer.text_fingerprint`.
        """
        self.address, self._fingerprints, self._hung_s = address, fingerprints, hung_s
        self.channel: grpc.aio.Channel = open_channel(address, tls)
        self.description: verifier_pb2.DescribeVerifierReply | None = None
        """Latest reply to `Describe`; None if the verifier is unavailable or incompatible."""
        self.holder = ""
        """Id of the gateway that drives the verifier; empty if unknown."""
        self._refused = ""

    @property
    def instance_id(self) -> str:
        """Id of the verifier's process; the address if it reports none."""
        return (self.description.instance_id if self.description else "") or self.address

    async def describe(self) -> bool:
        """Describe the verifier; return whether this gateway can drive it."""
        try:
            description = await VerifierClient(self.channel, self._hung_s).describe()
        except UnavailableError:
            self.description = None
            return False
        except IncompatibleError as error:
            self.description = None
            return self._refuse(f"{self.address}: {error}")
        theirs = (description.tokenizer_fingerprint, description.text_fingerprint)
        for name, expected, other in zip(
            ("vocabulary", "tokenizer"), self._fingerprints, theirs, strict=True
        ):
            if other and expected != other:
                self.description = None
                return self._refuse(
                    f"the gateway has {name} {expected}, but the verifier at {self.address} has {other}"
                )
        self._refused = ""
        self.description = description
        return True

    def _refuse(self, reason: str) -> bool:
        if reason == self._refused:
            return False
        self._refused = reason
        raise IncompatibleError(reason)

    async def close(self) -> None:
        await self.channel.close()
