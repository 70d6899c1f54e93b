"""Metrics of the system's parts: readiness and load."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from gateway.cluster.lease_manager import LeaseManager
from gateway.cluster.sessions import VerifierSessions
from gateway.events import Peer
from specinfer.service.metrics import Declaring, declare_model_info
from specinfer.service.stream import WireMeter

PEERS: tuple[Peer, ...] = ("verifier", "speculator", "client")


class SystemView(NamedTuple):
    """Parts of a gateway whose state is shown."""

    sessions: VerifierSessions
    leases: LeaseManager

    @property
    def running(self) -> int:
        return sum(session.loop.scheduler.running for session in self.sessions)

    @property
    def waiting(self) -> int:
        return sum(session.loop.scheduler.waiting for session in self.sessions)

    @property
    def capacity(self) -> int:
        """Tokens that fit into the caches of the driven verifiers."""
        return sum(session.description.kv_capacity_tokens for session in self.sessions)

    @property
    def cache_part(self) -> float:
        """Share of the caches reserved for running requests and their trees, 0 to 1."""
        used = sum(session.loop.scheduler.cache_tokens for session in self.sessions)
        return min(1.0, used / self.capacity) if self.capacity else 0.0

    @property
    def verifiers(self) -> dict[str, bool]:
        """True for each verifier that answers, by address."""
        described = {address: link.description is not None for address, link in self.sessions.links.items()}
        return described | {one.link.address: one.loop.verifier_ready for one in self.sessions}

    @property
    def speculators(self) -> dict[str, bool]:
        """True if a speculator service answers any session, by address."""
        ready: dict[str, bool] = {}
        for service in (service for one in self.sessions for service in one.loop.pool.records):
            ready[service.address] = service.description is not None or ready.get(service.address, False)
        return ready


Number = Callable[[SystemView], float]
_NUMBERS: Mapping[str, tuple[str, Number]] = {
    "num_requests_running": ("Requests being decoded.", lambda view: view.running),
    "num_requests_waiting": ("Requests that wait for admission.", lambda view: view.waiting),
    "redis_ready": ("Whether Redis answers (1) or not (0).", lambda view: view.leases.redis_ready),
    "gateway_ready": (
        "Whether the gateway can serve a request (1) or not (0).",
        lambda view: view.leases.ready,
    ),
    "gateways_alive": (
        "Gateways that renew their leases, this one included.",
        lambda view: len(view.leases.renewal.alive),
    ),
    "verifiers_leased": ("Verifiers that this gateway drives.", lambda view: len(view.sessions)),
}
"""Gauges: name, documentation and value."""
_VLLM_NUMBERS: Mapping[str, tuple[str, Number]] = {
    **{name: _NUMBERS[name] for name in ("num_requests_running", "num_requests_waiting")},
    "kv_cache_usage_perc": (
        "Share of the verifiers' caches reserved by running requests, 0 to 1.",
        lambda view: view.cache_part,
    ),
}


class SystemMetrics:
    """Exports a `SystemView`, and counts bytes."""

    def __init__(self, registry: CollectorRegistry, vllm_model: str = "") -> None:
        """Declare the metrics; `vllm_model` also exports the load under vLLM's names."""
        new = Declaring(registry)
        self._numbers = [(new.gauge(name, words), number) for name, (words, number) in _NUMBERS.items()]
        self._verifier = new.gauge("verifier_ready", "Whether a verifier answers (1) or not (0).", "verifier")
        self._speculator = new.gauge(
            "speculator_ready", "Whether a speculator service answers (1) or not (0).", "service"
        )
        self._model = declare_model_info(registry)
        self._vllm = VllmMetrics(registry, vllm_model) if vllm_model else None
        wire = new.counter(
            "wire_bytes",
            "Message bytes to and from verifier, speculator and client, without the overhead of gRPC and TLS.",
            *("peer", "direction"),
        )
        self._meters = {peer: WireMeter(wire, peer) for peer in PEERS}

    def meter(self, peer: Peer) -> WireMeter:
        """Return the byte counter for a kind of peer."""
        return self._meters[peer]

    def show(self, view: SystemView) -> None:
        """Set all gauges; remove gauges of services absent in `view`."""
        for gauge, number in self._numbers:
            gauge.set(number(view))
        _show(self._verifier, {(name,): ready for name, ready in view.verifiers.items()})
        _show(self._speculator, {(name,): ready for name, ready in view.speculators.items()})
        models = [session.description for session in view.sessions]
        _show(self._model, {(m.model, m.dtype, m.weights, m.executor, m.device): True for m in models})
        if self._vllm is not None:
            self._vllm.show(view)


class VllmMetrics:
    """Exports the load under vLLM's names. The gateway is one engine."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        """Declare the metrics; `model` is the served model's name."""
        self._labels = {"model_name": model, "engine": "0"}
        new = Declaring(registry, "vllm:")
        self._numbers = [
            (new.gauge(name, words, *self._labels), number) for name, (words, number) in _VLLM_NUMBERS.items()
        ]
        self._config = new.gauge(
            "cache_config_info",
            "Tokens per block and blocks of all caches; always 1, absent while no verifier is driven.",
            *(*self._labels, "block_size", "num_gpu_blocks"),
        )

    def show(self, view: SystemView) -> None:
        """Set the load; export `cache_config_info` while a verifier is driven."""
        for gauge, number in self._numbers:
            gauge.labels(**self._labels).set(number(view))
        self._config.clear()
        if block := next((session.description.kv_block_tokens for session in view.sessions), 0):
            self._config.labels(*self._labels.values(), str(block), str(view.capacity // block)).set(1)


def _show(gauge: Gauge, values: Mapping[tuple[str, ...], bool]) -> None:
    """Set a gauge's values by labels, and remove all other labels."""
    shown = {tuple(sample.labels.values()) for family in gauge.collect() for sample in family.samples}
    for labels in shown - values.keys():
        gauge.remove(*labels)
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
