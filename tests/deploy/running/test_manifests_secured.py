"""Run the chart with TLS and API keys: files of Secrets and probes fit the services."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx2
import pytest

from specinfer.client import AsyncClient, RequestFailedError
from specinfer.service.api_keys import make_key, write_keys
from specinfer.service.tls import ClientTls
from tests.chaos.model_directory import write_model
from tests.deploy.helm.chart import render
from tests.deploy.helm.chart_cases import API_KEYS, EXISTING, TLS, add_secret
from tests.deploy.helm.rendered import Rendered
from tests.deploy.running.local_cluster import LocalCluster
from tests.support.network.certificates import Authority, Pair
from tests.support.system import request_for

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.native, pytest.mark.timeout(300)]


class Secrets:
    """Real Secrets, which replace the placeholders of the cases."""

    def __init__(self, directory: Path) -> None:
        self.public, self._inner = Authority(directory, "public"), Authority(directory, "inner")
        self.key, entry = make_key("alice")
        write_keys(directory / "keys", [entry])
        services = self._inner.sign("services", "serverAuth", names="subjectAltName=DNS:specinfer-services")
        gateway = self.public.sign("gateway", "serverAuth", names="subjectAltName=DNS:specinfer-gateway")
        client = self._inner.sign("client", "clientAuth")
        self.files = {
            "specinfer-api-keys": {"keys.jsonl": (directory / "keys").read_text()},
            "specinfer-gateway-tls": certificate(gateway, self.public),
            "specinfer-gateway-client-tls": certificate(client, self._inner),
            "specinfer-verifier-tls": certificate(services, self._inner),
            "specinfer-speculator-tls": certificate(services, self._inner),
        }

    def put_into(self, objects: Rendered) -> None:
        """Add the Secrets to the chart's objects."""
        assert {name: set(files) for name, files in self.files.items()} == {
            name: set(files) for name, files in EXISTING.items()
        }
        for name, files in self.files.items():
            add_secret(objects, name, files)


def certificate(pair: Pair, authority: Authority) -> Mapping[str, str]:
    """Return a certificate's files with cert-manager's names."""
    files = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    return {name: path.read_text() for name, path in files.items()}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Secrets]]:
    directory = tmp_path_factory.mktemp("secured")
    values = {**API_KEYS, **TLS, "http": {"replicas": 1}}
    objects, secrets = render(values=values), Secrets(directory)
    secrets.put_into(objects)
    with LocalCluster(objects, directory, write_model(directory / "model")) as cluster:
        yield cluster, secrets


async def test_who_has_key_and_authority_is_served(secured: tuple[LocalCluster, Secrets]) -> None:
    cluster, secrets = secured
    addresses = [f"{pod.address}:50051" for pod in cluster.of("specinfer-gateway")]
    tls = ClientTls(secrets.public.certificate, server_name="specinfer-gateway")
    async with AsyncClient(addresses, secrets.key, tls) as client:
        answer = await client.generate(request_for([5, 17, 3], max_new_tokens=20, ignore_eos=True))
        assert len(answer.token_ids) == 20
        known = {row.name for _ in addresses for row in (await client.status()).speculators}
    assert known <= {"ngram", "ssm"}
    async with AsyncClient(addresses, None, tls) as client:
        with pytest.raises(RequestFailedError, match="UNAUTHENTICATED"):
            await client.generate(request_for([5, 17, 3], max_new_tokens=20))


async def test_the_http_service_trusts_the_gateways(secured: tuple[LocalCluster, Secrets]) -> None:
    cluster, secrets = secured
    (http,) = cluster.of("specinfer-http")
    async with httpx2.AsyncClient(base_url=f"http://{http.address}:8000", timeout=60) as client:
        assert (await client.get("/v1/models")).status_code == 401
        listed = await client.get("/v1/models", headers={"Authorization": f"Bearer {secrets.key}"})
    assert [model["object"] for model in listed.json()["data"]] == ["model"]


def test_probes_go_on_without_plaintext(secured: tuple[LocalCluster, Secrets]) -> None:
    cluster, _ = secured
    for pod in cluster.pods.values():
        assert all(pod.probe(kind) for kind in ("startupProbe", "livenessProbe", "readinessProbe")), pod.name
