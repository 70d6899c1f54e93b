"""Metrics of the system's parts: readiness and load."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge

from gateway.events import Peer
from specinfer.service.metrics import Declaring, declare_model_info
from specinfer.service.stream import WireMeter

PEERS: tuple[Peer, ...] = ("verifier", "speculator", "client")


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Summed KV cache use of a gateway's verifiers."""

    used_tokens: int
    """Tokens reserved for running requests, including their trees."""
    capacity_tokens: int
    block_tokens: int

    @property
    def part(self) -> float:
        """Share of the capacity in use, 0 to 1."""
        return min(1.0, self.used_tokens / self.capacity_tokens) if self.capacity_tokens else 0.0


@dataclass(frozen=True, slots=True)
class SystemView:
    """State of the system, as a gateway knows it."""

    running: int
    waiting: int
    gateway_ready: bool
    redis_ready: bool
    gateways: int
    """Live gateways, this one included."""
    driven: int
    """Verifiers that this gateway drives."""
    verifiers: Mapping[str, bool]
    """True for each verifier that answers, by address."""
    speculators: Mapping[str, bool]
    """True if a speculator service answers any session, by address."""
    cache: CacheUse
    models: Iterable[tuple[str, str, str, str, str]]
    """Model, dtype, weights, executor and device of each driven verifier."""


class SystemMetrics:
    """Exports a `SystemView`, and counts bytes."""

    def __init__(self, registry: CollectorRegistry, vllm_model: str = "") -> None:
        """Declare the metrics; `vllm_model` also exports the load under vLLM's names."""
        new = Declaring(registry)
        self._numbers = {
            "running": new.gauge("num_requests_running", "Requests being decoded."),
            "waiting": new.gauge("num_requests_waiting", "Requests that wait for admission."),
            "redis_ready": new.gauge("redis_ready", "Whether Redis answers (1) or not (0)."),
            "gateway_ready": new.gauge(
                "gateway_ready", "Whether the gateway can serve a request (1) or not (0)."
            ),
            "gateways": new.gauge("gateways_alive", "Gateways that renew their leases, this one included."),
            "driven": new.gauge("verifiers_leased", "Verifiers that this gateway drives."),
        }
        """Gauges by the field of `SystemView` that they show."""
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
        for field, gauge in self._numbers.items():
            gauge.set(getattr(view, field))
        _show(self._verifier, {(name,): ready for name, ready in view.verifiers.items()})
        _show(self._speculator, {(name,): ready for name, ready in view.speculators.items()})
        _show(self._model, dict.fromkeys(view.models, True))
        if self._vllm is not None:
            self._vllm.show(view.running, view.waiting, view.cache)


class VllmMetrics:
    """Exports the load under vLLM's names. The gateway is one engine."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        """Declare the metrics; `model` is the served model's name."""
        self._labels = {"model_name": model, "engine": "0"}
        new, names = Declaring(registry, "vllm:"), tuple(self._labels)
        self._running = new.gauge("num_requests_running", "Requests being decoded.", *names)
        self._waiting = new.gauge("num_requests_waiting", "Requests that wait for admission.", *names)
        usage = "Share of the verifiers' caches reserved by running requests, 0 to 1."
        self._usage = new.gauge("kv_cache_usage_perc", usage, *names)
        sizes = "Tokens per block and blocks of all caches; always 1, absent while no verifier is driven."
        self._config = new.gauge("cache_config_info", sizes, *names, "block_size", "num_gpu_blocks")

    def show(self, running: int, waiting: int, cache: CacheUse) -> None:
        """Set the load; export `cache_config_info` while a verifier is driven."""
        self._running.labels(**self._labels).set(running)
        self._waiting.labels(**self._labels).set(waiting)
        self._usage.labels(**self._labels).set(cache.part)
        self._config.clear()
        if cache.block_tokens:
            sizes = str(cache.block_tokens), str(cache.capacity_tokens // cache.block_tokens)
            self._config.labels(*self._labels.values(), *sizes).set(1)


def _show(gauge: Gauge, values: Mapping[tuple[str, ...], bool]) -> None:
    """Set a gauge's values by labels, and remove all other labels."""
    shown = {tuple(sample.labels.values()) for family in gauge.collect() for sample in family.samples}
    for labels in shown - values.keys():
        gauge.remove(*labels)
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
