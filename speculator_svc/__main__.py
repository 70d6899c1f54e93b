"""Starts a speculator: settings -> drafter -> engine -> servicer -> server."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from specinfer.service.engine_thread import EngineThread
from specinfer.service.entry_point import run_service
from specinfer.service.metrics import serve_metrics
from specinfer.service.server import ServiceServer, run_until_signalled
from specinfer.v1 import speculator_pb2, speculator_pb2_grpc
from speculator_svc.drafters import DrafterDescription, make_drafter
from speculator_svc.engine import SpeculatorEngine
from speculator_svc.metrics import SpeculatorMetrics
from speculator_svc.servicer import SpeculatorServicer
from speculator_svc.settings import SpeculatorSettings

PROGRAM = "speculator_svc"
SERVICE = speculator_pb2.DESCRIPTOR.services_by_name["Speculator"].full_name


def build_engine(settings: SpeculatorSettings) -> SpeculatorEngine:
    """Loads the drafter and puts the engine together."""
    if settings.threads:
        import torch  # model-free drafters start without it

        torch.set_num_threads(settings.threads)
    drafter = make_drafter(settings.drafter, settings.drafter_options())
    return SpeculatorEngine(drafter, settings.max_nodes, settings.idle_seconds)


def describe(
    settings: SpeculatorSettings, description: DrafterDescription
) -> speculator_pb2.DescribeSpeculatorReply:
    """What `Describe` answers."""
    return speculator_pb2.DescribeSpeculatorReply(
        name=settings.name or settings.drafter,
        drafter=settings.drafter,
        model=description.model,
        vocab_size=description.vocab_size,
        tokenizer_fingerprint=description.tokenizer_fingerprint,
        max_context_len=description.max_context_len,
        max_nodes=settings.max_nodes,
    )


async def serve(settings: SpeculatorSettings) -> None:
    """Serves until signalled."""
    thread = EngineThread("speculator-engine")
    engine = await thread.call(build_engine, settings)
    registry = CollectorRegistry()
    serve_metrics(registry, settings.metrics_port)
    server = ServiceServer(settings, [SERVICE])
    description = describe(settings, engine.drafter.description)
    servicer = SpeculatorServicer(engine, thread, SpeculatorMetrics(registry), description)
    speculator_pb2_grpc.add_SpeculatorServicer_to_server(servicer, server.grpc)  # type: ignore[no-untyped-call]
    await run_until_signalled(server)
    thread.stop()


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `python -m speculator_svc`."""
    run_service(PROGRAM, SpeculatorSettings, argv, lambda settings: settings.name or settings.drafter, serve)


if __name__ == "__main__":
    main()
