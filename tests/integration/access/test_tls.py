"""TLS and mutual TLS on every connection, with real servers."""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.settings import GatewaySettings
from specinfer.errors import SettingError, UnavailableError
from specinfer.service.channel import open_channel
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from specinfer.service.tls import ClientTls, ServerTls, redis_tls
from specinfer.v1 import (
    generation_pb2,
    speculator_pb2,
    speculator_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)
from tests.support.network.certificates import Authority, Pair
from tests.support.network.fake_gateway import TEXT, FakeGateway
from tests.support.network.http_service import COMPLETIONS, http_service
from tests.support.oracle import first, greedy
from tests.support.system import ScriptedDrafter, running_system


@dataclass(frozen=True, slots=True)
class Certificates:
    """Two authorities, of which services trust the first, and certificates signed by them."""

    ca: Authority
    foreign_ca: Authority
    server: Pair
    other_server: Pair
    expired_server: Pair
    gateway: Pair
    expired: Pair
    foreign: Pair


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory = tmp_path_factory.mktemp("certificates")
    ca, foreign = Authority(directory, "ca"), Authority(directory, "foreign-ca")
    return Certificates(
        ca=ca,
        foreign_ca=foreign,
        server=ca.sign("server", "serverAuth"),
        other_server=ca.sign("other-server", "serverAuth", names="subjectAltName=DNS:other.internal"),
        expired_server=ca.sign("expired-server", "serverAuth", days=-1),
        gateway=ca.sign("gateway", "clientAuth"),
        expired=ca.sign("expired", "clientAuth", days=-1),
        foreign=foreign.sign("foreign", "clientAuth"),
    )


def server_settings(pair: Pair, client_ca: Path | None = None, **options: Any) -> ServiceSettings:
    return ServiceSettings(
        listen="127.0.0.1:0",
        drain_seconds=0,
        tls_certificate=str(pair.certificate),
        tls_key=str(pair.key),
        tls_client_ca=str(client_ca or ""),
        **options,
    )


def client(ca: Authority, pair: Pair | None = None, name: str = "") -> ClientTls:
    return ClientTls(ca.certificate, pair and pair.certificate, pair and pair.key, name)


@asynccontextmanager
async def serving(settings: ServiceSettings) -> AsyncIterator[str]:
    """Run a server with health checks and `Describe`; yield its address."""
    server = ServiceServer(settings, ["specinfer.v1.Verifier"])
    servicer = DescribeServicer()
    verifier_pb2_grpc.add_VerifierServicer_to_server(servicer, server.grpc)
    speculator_pb2_grpc.add_SpeculatorServicer_to_server(servicer, server.grpc)
    port = await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()


class DescribeServicer:
    """Servicer of verifier and speculator that only implements `Describe`."""

    Verify = Draft = Release = None

    async def Describe(self, request: Any, context: Any) -> Any:
        if isinstance(request, verifier_pb2.DescribeVerifierRequest):
            return verifier_pb2.DescribeVerifierReply(model="tiny")
        return speculator_pb2.DescribeSpeculatorReply(max_nodes=7)


async def status_of_call(address: str, tls: ClientTls | None) -> grpc.StatusCode:
    """Return the status of a health check, which fails at once without a connection."""
    async with open_channel(address, tls) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def test_mutual_tls_serves_only_the_gateway(certificates: Certificates) -> None:
    c = certificates
    refused: dict[str, ClientTls | None] = {
        "no certificate": client(c.ca),
        "plaintext": None,
        "another authority's": client(c.ca, c.foreign),
        "expired": client(c.ca, c.expired),
        "a service's, which is for servers": client(c.ca, c.server),
        "the server is not trusted": client(c.foreign_ca, c.gateway),
        "the server has another name": client(c.ca, c.gateway, "other.internal"),
    }
    async with serving(server_settings(c.server, c.ca.certificate)) as address:
        assert await status_of_call(address, client(c.ca, c.gateway)) is grpc.StatusCode.OK
        assert (
            await status_of_call(address, client(c.ca, c.gateway, "verifier.internal")) is grpc.StatusCode.OK
        )
        ends = await asyncio.gather(*(status_of_call(address, tls) for tls in refused.values()))
        assert dict(zip(refused, ends, strict=True)) == dict.fromkeys(refused, grpc.StatusCode.UNAVAILABLE)


async def test_tls_without_client_certificates_serves_all_who_trust_it(
    certificates: Certificates,
) -> None:
    c = certificates
    async with serving(server_settings(c.server)) as address:
        assert await status_of_call(address, client(c.ca)) is grpc.StatusCode.OK
        assert await status_of_call(address, None) is grpc.StatusCode.UNAVAILABLE
        assert await status_of_call(address, client(c.foreign_ca)) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("pair", ["other_server", "expired_server"])
async def test_a_server_with_the_wrong_certificate_is_refused(certificates: Certificates, pair: str) -> None:
    async with serving(server_settings(getattr(certificates, pair))) as address:
        assert await status_of_call(address, client(certificates.ca)) is grpc.StatusCode.UNAVAILABLE


async def test_without_settings_everything_is_plaintext(certificates: Certificates) -> None:
    async with serving(ServiceSettings(listen="127.0.0.1:0", drain_seconds=0)) as address:
        assert await status_of_call(address, ClientTls()) is grpc.StatusCode.OK
        assert await status_of_call(address, client(certificates.ca)) is grpc.StatusCode.UNAVAILABLE


async def test_the_gateways_settings_reach_both_services(certificates: Certificates) -> None:
    c = certificates
    tls = GatewaySettings(
        services_tls_ca=str(c.ca.certificate),
        services_tls_certificate=str(c.gateway.certificate),
        services_tls_key=str(c.gateway.key),
        services_tls_name="verifier.internal",
    ).services_tls
    async with (
        serving(server_settings(c.server, c.ca.certificate)) as address,
        open_channel(address, tls) as channel,
    ):
        verifier = verifier_pb2_grpc.VerifierStub(channel)
        assert (await verifier.Describe(verifier_pb2.DescribeVerifierRequest(), timeout=60)).model == "tiny"
        speculator = speculator_pb2_grpc.SpeculatorStub(channel)
        described = await speculator.Describe(speculator_pb2.DescribeSpeculatorRequest(), timeout=60)
        assert described.max_nodes == 7
    assert not GatewaySettings().services_tls.wanted


async def test_new_certificates_are_used_without_a_restart(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    c = certificates
    used = Pair(tmp_path / "server.pem", tmp_path / "server.key")
    new = c.foreign_ca.sign("new-server", "serverAuth")

    def install(pair: Pair, only_certificate: bool = False) -> None:
        shutil.copy(pair.certificate, used.certificate)
        if not only_certificate:
            shutil.copy(pair.key, used.key)

    install(c.server)
    async with serving(server_settings(used)) as address:
        assert await status_of_call(address, client(c.ca)) is grpc.StatusCode.OK
        install(new, only_certificate=True)
        assert await status_of_call(address, client(c.ca)) is grpc.StatusCode.OK, (
            "the new pair does not match: the old one stays"
        )
        assert await status_of_call(address, client(c.ca)) is grpc.StatusCode.OK
        assert [r.levelname for r in caplog.records if "not used: tls_key = " in r.getMessage()] == ["ERROR"]
        install(new)
        assert await status_of_call(address, client(c.foreign_ca)) is grpc.StatusCode.OK
        assert await status_of_call(address, client(c.ca)) is grpc.StatusCode.UNAVAILABLE


@asynccontextmanager
async def tls_redis(redis_url: str, c: Certificates) -> AsyncIterator[str]:
    """Yield the URL of a proxy that adds mutual TLS to Redis, as not every redis-server has TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=c.ca.certificate)
    context.load_cert_chain(c.server.certificate, c.server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    parts = urlsplit(redis_url)
    writers: list[asyncio.StreamWriter] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(parts.hostname, parts.port)
        writers.extend((writer, forth))
        await asyncio.gather(pass_on(reader, forth), pass_on(back, writer))

    async with await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context) as server:
        yield f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        for writer in writers:
            writer.close()


async def test_redis(certificates: Certificates, redis_url: str) -> None:
    c = certificates

    async def ping(url: str, ca: Authority, pair: Pair | None) -> bool:
        files = {"redis_tls_ca": str(ca.certificate)}
        if pair is not None:
            files |= {"redis_tls_certificate": str(pair.certificate), "redis_tls_key": str(pair.key)}
        async with Redis.from_url(url, **GatewaySettings(**files).redis_tls(url)) as redis:
            try:
                return bool(await redis.ping())
            except (RedisError, OSError):
                return False

    async with tls_redis(redis_url, c) as url:
        assert await ping(url, c.ca, c.gateway)
        assert not await ping(url, c.ca, None)
        assert not await ping(url, c.ca, c.foreign)
        assert not await ping(url, c.ca, c.expired)
        assert not await ping(url, c.foreign_ca, c.gateway)


def test_redis_without_tls_gets_no_arguments(certificates: Certificates) -> None:
    assert redis_tls("redis://here") == {}
    assert redis_tls("rediss://here") == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    with pytest.raises(SettingError, match=r"redis_url = 'redis://\.\.\.': must begin with rediss://"):
        redis_tls("redis://:secret@here", certificates.ca.certificate)


Made: TypeAlias = Callable[[Certificates], ServerTls | ClientTls]
BAD: list[tuple[str, Made]] = [
    ("tls_certificate = None: required", lambda c: ServerTls(key=c.server.key)),
    ("tls_certificate = None: required", lambda c: ServerTls(client_ca=c.ca.certificate)),
    ("tls_key = None: certificate and key must be given together", lambda c: ServerTls(c.server.certificate)),
    ("tls_certificate = '/no': cannot be read: No such file", lambda c: ServerTls(Path("/no"), c.server.key)),
    ("tls_key = .*belongs to", lambda c: ServerTls(c.server.certificate, c.gateway.key)),
    ("tls_key = .*belongs to", lambda c: ServerTls(c.server.key, c.server.key)),
    (
        "tls_client_ca = .*must contain PEM certificates",
        lambda c: ServerTls(c.server.certificate, c.server.key, c.server.key),
    ),
    ("tls_ca = None: required", lambda c: ClientTls(None, c.gateway.certificate, c.gateway.key)),
    ("tls_ca = None: required", lambda c: ClientTls(server_name="here")),
    ("tls_certificate = None: cert", lambda c: ClientTls(c.ca.certificate, key=c.gateway.key)),
    ("services_tls_ca = '/no'", lambda c: ClientTls(Path("/no"), prefix="services_tls")),
]


@pytest.mark.parametrize(("message", "make"), BAD)
def test_settings_that_do_not_fit_are_named(certificates: Certificates, message: str, make: Made) -> None:
    with pytest.raises(SettingError, match=message):
        make(certificates).check()


def test_a_service_refuses_bad_files_before_it_loads_anything() -> None:
    with pytest.raises(SettingError, match="tls_key = None"):
        GatewaySettings.load("gateway", ["--tls-certificate", "/no/such"])


async def test_a_whole_system_works_with_mutual_tls_between_its_services(
    certificates: Certificates, redis_url: str
) -> None:
    """Without the gateway's certificate, the system does not start."""
    served, shown = certificates.server, certificates.gateway
    service_options = {
        "tls_certificate": str(served.certificate),
        "tls_key": str(served.key),
        "tls_client_ca": str(certificates.ca.certificate),
    }
    gateway_options = {
        "services_tls_ca": str(certificates.ca.certificate),
        "services_tls_certificate": str(shown.certificate),
        "services_tls_key": str(shown.key),
    }
    drafters = {"a": ScriptedDrafter(first(1))}
    async with running_system(
        redis_url, drafters, service_options=service_options, **gateway_options
    ) as system:
        replies = await system.generate([5, 17, 3], max_new_tokens=16)
        assert [token for reply in replies for token in reply.token_ids] == greedy([5, 17, 3], 16)
        assert replies[-1].summary.stats.accepted > 0
    del gateway_options["services_tls_certificate"], gateway_options["services_tls_key"]
    with pytest.raises(UnavailableError, match="is not serving"):
        async with running_system(
            redis_url, service_options=service_options, start_timeout_seconds=0.5, **gateway_options
        ):
            pass


async def test_the_http_service_has_tls_on_both_sides(certificates: Certificates) -> None:
    """It requires clients' certificates, and shows its own to the gateway."""
    ca, served, shown = str(certificates.ca.certificate), certificates.server, certificates.gateway
    options = {"tls_certificate": str(served.certificate), "tls_key": str(served.key), "tls_client_ca": ca}
    towards = {"gateway_tls_ca": ca, "gateway_tls_certificate": str(shown.certificate)}
    towards["gateway_tls_key"] = str(shown.key)
    context = ssl.create_default_context(cafile=ca)
    nameless = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(shown.certificate, shown.key)
    gateway = FakeGateway(tls=ServerTls(served.certificate, served.key, certificates.ca.certificate))
    gateway.states.append(generation_pb2.StatusReply(model="tiny"))
    await gateway.start()
    try:
        async with http_service(gateway.address, context, **options, **towards) as http:
            requested = {"model": "tiny", "prompt": "hi"}
            reply = await http.plain.post(COMPLETIONS, json=requested)
            assert reply.json()["choices"][0]["text"] == TEXT
            async with httpx2.AsyncClient(base_url=http.url, verify=nameless) as nobody:
                with pytest.raises(httpx2.TransportError):
                    await nobody.get("/v1/models")
        async with http_service(gateway.address, context, **options, patience_seconds=0.0) as http:
            assert (await http.plain.get("/v1/models")).status_code == 503
    finally:
        await gateway.stop()
