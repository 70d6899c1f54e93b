"""Parts of an answer, for its readers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from http_svc.calls.elements import Kinds
from specinfer.chat.forms import CallForm


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Parts that the answers of one request may have."""

    functions: Collection[str] | None = None
    """Callable functions; empty: any name; None: no calls."""
    thoughts: tuple[str, str] = ("", "")
    """Marks around thoughts; empty: there are none."""
    begins_in_thoughts: bool = False
    kinds: Mapping[str, Kinds] = field(default_factory=dict)
    """Types of parameters by function."""
    calls: CallForm | None = None
    """Form of calls; JSON is read next to it. None: every form."""
    beginnings: tuple[str, ...] = ()
    """Marks of calls in an answer of another format; empty: JSON."""

    @property
    def plain(self) -> bool:
        """True if the text is the answer as it is."""
        return self.functions is None and not self.thoughts[0]
