"""Describe the parts that an answer may have, for its parsers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from http_svc.calls.elements import Kinds
from specinfer.chat.forms import CallForm


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Parts that the answers of one request may have."""

    functions: Collection[str] | None = None
    """Names of callable functions; empty: any name; None: no calls."""
    thoughts: tuple[str, str] = ("", "")
    """Marks around the reasoning ("thoughts"); empty: the model writes none."""
    begins_in_thoughts: bool = False
    kinds: Mapping[str, Kinds] = field(default_factory=dict)
    """JSON types of each function's parameters."""
    calls: CallForm | None = None
    """The model's form of calls, besides JSON; None: every form."""
    beginnings: tuple[str, ...] = ()
    """Beginnings of answers of calls, if other answers have a schema."""

    @property
    def plain(self) -> bool:
        """True if the text needs no parser."""
        return self.functions is None and not self.thoughts[0]
