"""The resident speculators: drafters in this process, whose trees leave with the verdicts they follow.

A fault here costs drafts, never a verdict.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specinfer.drafters import TargetTopK
from specinfer.drafters.contexts import MOST_BYTES
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftOutcome
from specinfer.drafters.failures import DraftFailures
from specinfer.drafters.pools import load_drafters, read_speculators
from specinfer.drafters.resident import NextDraft, ResidentDrafters
from specinfer.drafters.warm_up import warm_up
from specinfer.errors import IncompatibleError
from specinfer.remote.description import describe, encode_draft
from specinfer.statuses import EntryStatus
from specinfer.v1 import common_pb2, speculator_pb2, verifier_pb2
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.features import NO_FEATURES, with_layers
from specinfer.verification.jobs import MOST_TOP_K, VerifyJob, VerifyOutcome
from specinfer.wire.tree_codec import decode_limits
from verifier_svc.settings import VerifierSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NextDrafts:
    """Drafts behind the verdicts of a step, and what they took."""

    by_request: Mapping[str, Sequence[speculator_pb2.Draft]] = field(default_factory=dict)
    seconds: float = 0.0
    own_seconds: Sequence[float] = ()
    """Seconds of each speculator, in the order of Describe."""
    tokens_read: int = 0
    outcomes: Sequence[DraftOutcome] = ()


NO_DRAFTS = NextDrafts()


class ResidentSpeculators:
    """Drafters beside a verifier's engine. Used by the engine's thread."""

    def __init__(self, drafters: SpeculatorEngine, methods: Sequence[str], engine: VerifierEngine) -> None:
        """Put drafters of these methods beside the engine that verifies.

        Raises:
            IncompatibleError: if they read hidden states that the engine does not have.
        """
        self.description = describe(drafters, methods, methods)
        self._engine, self._drafters = engine, ResidentDrafters(drafters)
        self._failures = DraftFailures(methods)
        self._check(engine)
        engine.on_release = self._drafters.release

    @classmethod
    def load(
        cls, settings: VerifierSettings, engine: VerifierEngine, fingerprint: str
    ) -> "ResidentSpeculators | None":
        """Load the drafters that the settings name, for a target with this tokenizer; None if they name none.

        Raises:
            SettingError: naming what cannot be read.
            IncompatibleError: if a drafter does not fit the target.
        """
        named = read_speculators([settings.drafters]) if settings.drafters else None
        if not named:
            return None
        (flags,) = named.values()
        target = {"model": settings.model, "dtype": settings.dtype, "device": settings.device}
        loaded = load_drafters("drafters", flags, target)
        drafters = SpeculatorEngine(list(loaded.values()), idle_seconds=math.inf)
        drafters.check_tokenizer(fingerprint)
        warm_up(drafters)
        return cls(drafters, list(loaded), engine)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states they read, ascending."""
        return tuple(self.description.feature_layers)

    @property
    def target_top_k(self) -> int:
        """Predictions of the target that they read at each node; 0: none."""
        return self.description.target_top_k

    def draft(
        self,
        entries: Sequence[verifier_pb2.VerifyEntry],
        jobs: Sequence[VerifyJob],
        outcomes: Sequence[VerifyOutcome],
    ) -> NextDrafts:
        """Draft behind the verdicts of a step, where its entries ask for it; call before the engine settles."""
        started = time.perf_counter()
        wanted = {e.request_id: e for e in entries if e.HasField("next_draft") or e.references}
        orders: list[NextDraft] = []
        for job, outcome in zip(jobs, outcomes, strict=True):
            try:
                if outcome.status is not EntryStatus.OK or not self._follow(job, outcome):
                    continue
            except Exception:
                log.exception("a context could not be followed")
                self._drafters.release([job.request_id])
                continue
            entry = wanted.get(job.request_id)
            try:
                if entry is not None and entry.references:
                    self._drafters.refer(job.request_id, [list(text.token_ids) for text in entry.references])
                if entry is not None and entry.HasField("next_draft") and _goes_on(outcome):
                    orders.append(self._order(entry.next_draft, job, outcome))
            except Exception:
                log.exception("a draft could not begin")
                self._drafters.begin_again([job.request_id])
        if not orders:
            return NO_DRAFTS
        return self._drafted(orders, started)

    def _drafted(self, orders: Sequence[NextDraft], started: float) -> NextDrafts:
        try:
            outcomes = self._drafters.draft(orders)
            self._failures.note(outcomes, time.monotonic())
            found = {
                outcome.request_id: _encode(outcome, order)
                for outcome, order in zip(outcomes, orders, strict=True)
            }
        except Exception:
            log.exception("drafting behind %d verdicts failed", len(orders))
            self._drafters.begin_again([order.request_id for order in orders])
            return NO_DRAFTS
        seconds, engine = time.perf_counter() - started, self._drafters.engine
        return NextDrafts(found, seconds, list(engine.seconds), self._drafters.tokens_read, outcomes)

    def _follow(self, job: VerifyJob, outcome: VerifyOutcome) -> bool:
        """Note the tokens that a job added to its request, and those of its verdict; return if all are known."""
        tokens = list(job.delta)
        if job.tree is not None and outcome.verdict is not None:
            tokens += job.tree.token_ids[list(outcome.verdict.accepted)].tolist()
            tokens.append(outcome.verdict.bonus)
        return self._drafters.follow(job.request_id, job.base_len, tokens)

    def _order(self, wanted: verifier_pb2.NextDraft, job: VerifyJob, outcome: VerifyOutcome) -> NextDraft:
        name = job.request_id
        features, top_k = NO_FEATURES, None
        if self.feature_layers:
            since = self._drafters.features_from(name)
            kept = self._engine.runner.features.layers
            span = self._engine.features(name, since, MOST_BYTES)
            features = with_layers(span, kept, self.feature_layers)
        if self.target_top_k and job.tree is not None and outcome.top_k:
            rows = np.array(outcome.top_k, np.int64)[:, : self.target_top_k]
            top_k = TargetTopK(job.tree.token_ids.astype(np.int64), job.tree.parents, rows)
        return NextDraft(
            name,
            decode_limits(wanted),
            wanted.max_positions,
            job.sampling if wanted.sees_noise else replace(job.sampling, seed=0),
            list(wanted.speculators),
            wanted.draw_seed,
            wanted.sees_noise,
            features.data,
            features.start,
            top_k,
        )

    def _check(self, engine: VerifierEngine) -> None:
        layers, size = self.feature_layers, self.description.feature_size
        most, hidden = engine.runner.feature_layers, engine.runner.config.hidden_size
        if layers and (not most or layers[-1] > most or size != hidden):
            raise IncompatibleError(
                f"the drafters read hidden states of {size} numbers after layers {list(layers)}; "
                f"the target has {hidden} numbers after up to {most} layers"
            )
        if self.target_top_k > min(MOST_TOP_K, engine.runner.config.vocab_size):
            raise IncompatibleError(
                f"the drafters read {self.target_top_k} predictions of the target per node"
            )


def _encode(outcome: DraftOutcome, order: NextDraft) -> list[speculator_pb2.Draft]:
    """Return the drafts of an outcome; the reason for each speculator, where the entry as a whole was refused."""
    if outcome.status is EntryStatus.OK:
        return [encode_draft(place, draft) for place, draft in outcome.drafts]
    refused = outcome.status is EntryStatus.ERROR
    status = common_pb2.ENTRY_STATUS_ERROR if refused else common_pb2.ENTRY_STATUS_EXHAUSTED
    return [
        speculator_pb2.Draft(speculator=place, status=status, message=outcome.message)
        for place in order.speculators
    ]


def _goes_on(outcome: VerifyOutcome) -> bool:
    """Return whether tokens may follow a verdict."""
    return outcome.verdict is not None and not outcome.finished
