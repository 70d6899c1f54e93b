"""Metrics ports of real processes."""

import socket
from pathlib import Path

import grpc
import pytest

from specinfer import __version__
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.system import LocalSystem
from specinfer.errors import InvalidInputError
from specinfer.v1 import generation_pb2_grpc
from tests.support.models.saved_model import save_target
from tests.support.network.scrape import Scrape
from tests.support.preloaded import ForkedChild
from tests.support.system import request_for

PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
PORT = "SPECINFER_{}_METRICS_PORT"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("model"))


def test_real_services_are_scraped_after_a_request(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`specinfer up` serves the metrics of all services if their ports are set."""
    ports = dict(zip(("GATEWAY", "VERIFIER", "SPECULATOR"), free_ports(3), strict=True))
    for name, port in ports.items():
        monkeypatch.setenv(PORT.format(name), str(port))
    monkeypatch.setattr("specinfer.cli.local.system.Child", ForkedChild)
    options = LocalOptions(
        model=str(model), dtype="float32", speculators={"ngram": {"drafter": "ngram"}}, metrics=True
    )
    with LocalSystem(options) as system, grpc.insecure_channel(system.address) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        replies = list(
            stub.Generate(request_for([5, 6, 7] * 8, max_new_tokens=12, speculation="SPECULATION_ALWAYS"))
        )
        assert sum(len(reply.token_ids) for reply in replies) == 12
        scrapes = {name: Scrape.at(f"127.0.0.1:{port}") for name, port in ports.items()}
    for scrape in scrapes.values():
        assert scrape.names >= PROCESS
        assert scrape.value("build_info", version=__version__) == 1
        assert not any(name.endswith("_created") for name in scrape.names)
        assert not any(name.startswith("python_") for name in scrape.names)
    gateway, verifier, speculator = scrapes.values()
    assert gateway.value("generation_tokens_total") == 12
    assert verifier.value("verifier_step_seconds_count") == sum(
        gateway.by("planner_steps_total", "reason").values()
    )
    assert gateway.by("model_info", "dtype") == verifier.by("model_info", "dtype") == {"float32": 1}
    assert (speculator.value("speculator_step_seconds_count") or 0) > 0


def test_local_systems_serve_metrics_only_where_they_should(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default only the gateway of `up`; others if the user sets their port."""
    from specinfer.cli.local import system as local

    seen: dict[str, dict[str, str]] = {}

    class Child:
        def __init__(self, name: str, command: list[str], log: Path, environment: dict[str, str]) -> None:
            seen[name] = environment

    monkeypatch.setattr(local, "Child", Child)
    for name in ("GATEWAY", "VERIFIER", "SPECULATOR"):
        monkeypatch.delenv(PORT.format(name), raising=False)

    def off(metrics: bool) -> set[str]:
        system = LocalSystem(LocalOptions(model=str(model), metrics=metrics))
        for name, module in (("v", "verifier_svc"), ("s", "speculator_svc"), ("g", "gateway")):
            system._spawn(name, module, {})
        return {
            name
            for name, program_metrics in seen.items()
            if "0" in {program_metrics.get(k) for k in program_metrics if "METRICS" in k}
        }

    assert off(metrics=False) == {"v", "s", "g"}
    assert off(metrics=True) == {"v", "s"}
    monkeypatch.setenv(PORT.format("VERIFIER"), "9465")
    assert off(metrics=True) == {"s"}


def test_up_checks_its_metrics_port_before_it_starts_anything(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specinfer.cli.local.system.Child", lambda *_: pytest.fail("a process was started"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv(PORT.format("GATEWAY"), str(other.getsockname()[1]))
        with pytest.raises(InvalidInputError, match=r"SPECINFER_GATEWAY_METRICS_PORT = .*in use"):
            LocalSystem(LocalOptions(model=str(model), metrics=True)).__enter__()
