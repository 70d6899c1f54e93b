"""Starts a verifier: settings -> model -> engine -> servicer -> server."""

from collections.abc import Sequence

from specinfer.model.threads import use_threads
from specinfer.service.channel import DEFAULT_MAX_MESSAGE
from specinfer.service.entry_point import run_service
from specinfer.service.metrics import serve_metrics, service_registry
from specinfer.service.server import ServiceServer, run_until_signalled
from specinfer.service.threads import EngineThread
from specinfer.service.tracing import open_tracer
from specinfer.v1 import verifier_pb2, verifier_pb2_grpc
from specinfer.verification.acceptance import find_rule
from verifier_svc.app import load_models, load_runner, make_servicer
from verifier_svc.ranks import follow, layout_of, leading, own_rank
from verifier_svc.settings import VerifierSettings

PROGRAM = "verifier_svc"
SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["Verifier"].full_name


async def serve(settings: VerifierSettings) -> None:
    """Run a verifier until a signal, or one rank's part of it."""
    rank = own_rank()
    if rank is None and layout_of(settings).ranks > 1:
        from verifier_svc.launcher import launch

        launch(settings, PROGRAM)
        return
    find_rule(settings.acceptance)  # refuse a wrong name before the weights are loaded
    use_threads(settings.threads)
    thread = EngineThread("verifier-engine")
    if rank:
        runner = await thread.call(load_runner, settings)
        assert runner.parallel is not None, "only ranks that share a model have numbers"
        await follow(runner.parallel, thread)
    else:
        await lead(settings, thread)
    thread.stop()


async def lead(settings: VerifierSettings, thread: EngineThread) -> None:
    """Serve gateways: the work of rank 0, or of the only process."""
    registry = service_registry()
    serve_metrics(registry, settings.metrics_host, settings.metrics_port)
    tracer = open_tracer(PROGRAM, settings)
    models = await thread.call(load_models, settings)
    runner = models.runner
    async with leading(runner.parallel, thread, settings.rank_timeout_seconds):
        servicer = await make_servicer(settings, thread, models, registry, tracer)
        # a step may start many requests, each with a grammar of many functions
        server = ServiceServer(settings, [SERVICE], max_message_bytes=DEFAULT_MAX_MESSAGE)
        verifier_pb2_grpc.add_VerifierServicer_to_server(servicer, server.grpc)  # type: ignore[no-untyped-call]
        await run_until_signalled(server)
        await thread.call(runner.cache.pool.save_prefixes)
    if tracer is not None:
        tracer.close()


def main(argv: Sequence[str] | None = None) -> None:
    rank = own_rank()
    name = f"verifier-rank-{rank}" if rank else "verifier"
    run_service(PROGRAM, VerifierSettings, argv, lambda _: name, serve)


if __name__ == "__main__":
    main()
