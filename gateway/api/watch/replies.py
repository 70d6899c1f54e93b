"""The stream of replies that a watch gets, at a bounded pace."""

import asyncio
import time
from collections.abc import AsyncGenerator

from gateway.api.callers import Caller
from gateway.api.watch.pictures import RequestText, TokenTexts, reply_of
from gateway.api.watch.watches import Pace, Watches
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import generation_pb2


class WatchReplies:
    """Streams of replies for the watches of one gateway."""

    def __init__(self, watches: Watches, tokenizer: Tokenizer) -> None:
        self._watches, self._tokenizer = watches, tokenizer
        self._pace, self._texts = Pace(), TokenTexts(tokenizer)

    async def of(self, request_id: str, caller: Caller) -> AsyncGenerator[generation_pb2.WatchReply, None]:
        """Yield the steps of a request until it ends, or of all requests of a caller.

        Raises:
            InvalidInputError, ExhaustedError: as for `Watches.open`.
            UnavailableError: when this gateway ends.
        """
        texts: dict[str, RequestText] = {}
        with self._watches.open(caller, request_id) as watch:
            yield generation_pb2.WatchReply()
            while True:
                await watch.wait()
                await asyncio.sleep(self._pace.turn(time.monotonic()))
                seen, dropped = watch.take()
                name = seen.item.request_id
                text = texts.setdefault(name, RequestText(self._tokenizer))
                yield reply_of(seen, dropped, self._texts, text)
                if seen.item.final:
                    del texts[name]
                    if request_id:
                        return
