"""How the speculator pool treats its services. Pure."""

import secrets
from dataclasses import dataclass, field

from specinfer.service.outage import backoff
from specinfer.speculators.deadline import draft_deadline

_STEP_BYTES = 12 * 2**20


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """How the pool treats its services."""

    deadline_s: float
    """Time speculators get in a step; 0: in proportion to what the verifier takes."""
    vocab_size: int
    tokenizer_fingerprint: str
    """The verifier's; a service with another one is refused."""
    hung_s: float = 10.0
    """Silence after which a service is taken for dead."""
    most_deadline_s: float = 5.0
    """Most that a deadline in proportion may be."""
    trust_draws: bool = True
    """Whether speculators may draw for sampled requests. One that lies about what it drew from biases the
    output, so those that are not trusted may only send points."""
    max_nodes: int = 128
    """Most nodes of a tree that the verifier accepts, root included."""
    step_bytes: int = _STEP_BYTES
    """What the trees of one step may take in the message to the verifier, whose limit is 16 MiB."""
    retry_s: float = 0.5
    """Pause before a service that is away is tried again; doubled for each loss in a row."""
    longest_retry_s: float = 30.0
    """Most of that; also for a service that does not fit: it may be replaced."""
    hidden_size: int = 0
    """Numbers in a hidden state of the target."""
    feature_layers: int = 0
    """Layers after which the verifier tells hidden states; 0: it tells none."""
    client: str = field(default_factory=lambda: secrets.token_hex(8))
    """Who asks: services keep the requests of different clients apart."""

    def deadline(self, step_s: float | None) -> float:
        """Seconds that speculators get where a step usually takes so long without them."""
        return self.deadline_s or draft_deadline(step_s, self.most_deadline_s)

    def retry_after(self, losses: int) -> float:
        """Seconds until a service that was lost so many times in a row is tried again."""
        return backoff(self.retry_s, losses, self.longest_retry_s)
