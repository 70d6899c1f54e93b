"""Parts that an answer may have, as its readers know them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from http_svc.calls.elements import Kinds
from specinfer.chat.forms import CallForm


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Parts that the answers of one request may have."""

    functions: Collection[str] | None = None
    """Names of functions that may be called; empty: any; None: there are no calls."""
    thoughts: tuple[str, str] = ("", "")
    """Marks around thoughts; empty: there are none."""
    begins_in_thoughts: bool = False
    kinds: Mapping[str, Kinds] = field(default_factory=dict)
    """Types of parameters by function."""
    calls: CallForm | None = None
    """Form of calls; JSON is read next to it. None: every form."""
    beginnings: tuple[str, ...] = ()
    """Marks with which calls begin where the answer has another form instead; empty: JSON of a call."""

    @property
    def plain(self) -> bool:
        """True if the text is the answer as it is."""
        return self.functions is None and not self.thoughts[0]
