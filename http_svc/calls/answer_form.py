"""Describe which parts an answer may have, for the parsers of answers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from http_svc.calls.elements import Kinds
from specinfer.text.chat.forms import CallForm


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Parts (reasoning, calls) that the answers to one request may have."""

    functions: Collection[str] | None = None
    """Names of callable functions; empty: any name; None: no calls."""
    reasoning: tuple[str, str] = ("", "")
    """Marks around the reasoning; empty if the model has none."""
    end_token: int | None = None
    """Id of the mark after the reasoning, if it is one token."""
    kinds: Mapping[str, Kinds] = field(default_factory=dict)
    """By function, the JSON types of its parameters."""
    calls: CallForm | None = None
    """The model's form of calls; JSON is accepted, too. None: any form."""
    harmony: bool = False
    """True for gpt-oss's format."""
    beginnings: tuple[str, ...] = ()
    """First texts of answers with calls, if other answers follow a schema."""

    @property
    def plain(self) -> bool:
        """True if the answers have neither calls nor reasoning."""
        return self.functions is None and not self.reasoning[0]
