"""Start of a speculator service: settings -> drafters -> engine -> servicer -> server."""

import secrets
from collections.abc import Sequence

from specinfer.drafters import make_drafter
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.warm_up import warm_up
from specinfer.service.entry_point import run_service
from specinfer.service.metrics import serve_metrics, service_registry
from specinfer.service.server import ServiceServer, run_until_signalled
from specinfer.service.threads import EngineThread
from specinfer.service.tracing import open_tracer
from specinfer.speculators.description import describe
from specinfer.v1 import speculator_pb2, speculator_pb2_grpc
from speculator_svc.metrics import SpeculatorMetrics
from speculator_svc.servicer import SpeculatorServicer
from speculator_svc.settings import SpeculatorSettings

PROGRAM = "speculator_svc"
SERVICE = speculator_pb2.DESCRIPTOR.services_by_name["Speculator"].full_name


def build_engine(settings: SpeculatorSettings) -> SpeculatorEngine:
    """Load the drafters and put the engine together."""
    if settings.threads:
        import torch  # model-free drafters start without it

        torch.set_num_threads(settings.threads)
    options = settings.drafter_options()
    drafters = [make_drafter(name, options) for name in settings.drafters]
    return SpeculatorEngine(drafters)


async def serve(settings: SpeculatorSettings) -> None:
    """Serve until signalled."""
    registry = service_registry()
    serve_metrics(registry, settings.metrics_host, settings.metrics_port)
    tracer = open_tracer(PROGRAM, settings)
    thread = EngineThread("speculator-engine")
    engine = await thread.call(build_engine, settings)
    await thread.call(warm_up, engine)
    server = ServiceServer(settings, [SERVICE])
    description = describe(engine, settings.names, settings.drafters, secrets.token_hex(8))
    metrics = SpeculatorMetrics(registry, settings.names)
    servicer = SpeculatorServicer(engine, thread, metrics, description, tracer)
    speculator_pb2_grpc.add_SpeculatorServicer_to_server(servicer, server.grpc)  # type: ignore[no-untyped-call]
    await run_until_signalled(server)
    thread.stop()
    if tracer is not None:
        tracer.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Run `python -m speculator_svc`."""
    run_service(PROGRAM, SpeculatorSettings, argv, lambda settings: settings.name or settings.drafter, serve)


if __name__ == "__main__":
    main()
