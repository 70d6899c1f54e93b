"""Bodies of vLLM's `/tokenize` and `/detokenize`."""

from typing import Annotated

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from http_svc.body.conversation import Conversation
from http_svc.body.fields import FIRST, MAX_TOKENS, NotTrue, Text, TokenId, at_most
from http_svc.body.neutral import RoutingFields


class TokenizeBody(RoutingFields, Conversation):
    """`POST /tokenize`: a text or a conversation."""

    model: Text | None = None
    prompt: Text | None = None
    add_special_tokens: bool | None = None
    """False: no special tokens are added at the ends of `prompt`."""
    return_token_strs: NotTrue = None

    @model_validator(mode="after")
    def _check_prompt(self) -> "TokenizeBody":
        if (self.prompt is None) == (not self.messages):
            raise PydanticCustomError(
                "not_one", "{field}: give prompt or messages, and not both", {"field": "prompt"}
            )
        if self.messages and self.add_special_tokens:
            reason = "{field}: only with prompt; a chat template adds its own special tokens"
            raise PydanticCustomError("excluded", reason, {"field": "add_special_tokens"})
        return self


class DetokenizeBody(RoutingFields):
    """`POST /detokenize`."""

    model: Text | None = None
    tokens: Annotated[list[TokenId], FIRST, at_most(MAX_TOKENS)]
