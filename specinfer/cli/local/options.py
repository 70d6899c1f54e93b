"""Options of a local system: its services and their flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specinfer.drafters.draft import draft_group
from specinfer.drafters.pools import INDEPENDENT, Flags
from specinfer.hub import DEFAULT_MODEL
from specinfer.options.model_options import AUTO_DRAFT, NO_DRAFT, PassOptions


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Options of a local system; `Flags` maps flags without dashes to values."""

    model: str = DEFAULT_MODEL
    dtype: str = "bfloat16"
    device: str | None = None
    """Device of the models; None: from the services' environment, else the CPU."""
    listen: str | None = None
    """Address of the gateway; None: a free port of loopback."""
    verifier: Flags = field(default_factory=dict)
    gateway: Flags = field(default_factory=dict)
    speculators: Mapping[str, Flags] | None = None
    """Flags of speculator services by name; None: the default services."""
    addresses: Sequence[str] = ()
    """Addresses of running speculator services to use in addition."""
    draft: str | None = None
    """The verifier's `--draft`; None: "auto", or "none" if `speculators` is set."""
    metrics: bool = False
    """True if the gateway serves metrics at its default port."""
    http: str | None = None
    """Address of the HTTP service; None: no HTTP service."""
    http_flags: Flags = field(default_factory=dict)

    @property
    def hosted_draft(self) -> str:
        """The verifier's `--draft`, after applying the default."""
        if self.draft is not None:
            return self.draft
        return AUTO_DRAFT if self.speculators is None else NO_DRAFT

    @property
    def hosted(self) -> Flags | None:
        """Flags of the speculators in the verifier's process; None: no such speculators."""
        return draft_group(self.model, self.hosted_draft, self.target)

    @property
    def target(self) -> PassOptions:
        """Options of the verifier's model on which its drafts depend."""
        given = {name: self.verifier[name] for name in ("executor", "offload") if name in self.verifier}
        return PassOptions(self.dtype, self.device or "cpu", **given)

    @property
    def services(self) -> Mapping[str, Flags]:
        """Flags of the speculator services by name."""
        return INDEPENDENT if self.speculators is None else self.speculators
