"""What a call carries beside its message: who calls, and the trace that it belongs to."""

import re
from typing import TypeAlias

from specinfer.errors import InvalidInputError

Metadata: TypeAlias = tuple[tuple[str, str], ...]


def call_metadata(api_key: str | None, traceparent: str = "") -> Metadata:
    """The metadata of calls with this key and this trace context (W3C); empty for none.

    Raises:
        InvalidInputError: if one of them cannot be sent; the error does not show the key.
    """
    metadata: Metadata = ()
    if api_key is not None:
        if not api_key or not api_key.isascii() or not api_key.isprintable():
            raise InvalidInputError("api_key", "...", "must be printable ASCII")
        metadata = (("authorization", f"Bearer {api_key}"),)
    if traceparent:
        if not re.fullmatch(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", traceparent):
            raise InvalidInputError("traceparent", traceparent, "must be VERSION-TRACE-PARENT-FLAGS, in hex")
        metadata = (*metadata, ("traceparent", traceparent))
    return metadata
