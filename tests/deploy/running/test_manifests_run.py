"""Run the rendered chart as local processes: its commands, environments, files and probes.

A typo in a manifest (a flag, a port, a variable, the service of a probe) fails here.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from specinfer.client import AsyncClient, Patience
from specinfer.errors import UnavailableError
from specinfer.v1 import generation_pb2
from tests.chaos.model_directory import write_model
from tests.deploy.helm.chart import pod_of_helm_test, render
from tests.deploy.helm.rendered import Rendered
from tests.deploy.running.local_cluster import LocalCluster
from tests.deploy.running.local_pod import Pod
from tests.support.system import request_for

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.timeout(300)]
ONE_HTTP = {"http": {"replicas": 1}}
PROMPTS = [[5, 17, 3, 88], [40, 41, 42], [7] * 20, [60, 9, 33, 2, 71, 12]]
TOKENS = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    model = write_model(directory / "model")
    with LocalCluster(render(values=ONE_HTTP), directory, model) as cluster:
        yield cluster


def gateways(cluster: LocalCluster) -> list[Pod]:
    return cluster.of("specinfer-gateway")


def client_of(pods: list[Pod]) -> AsyncClient:
    addresses = [f"{pod.address}:{pod.workload.ports['grpc']}" for pod in pods]
    return AsyncClient(addresses, patience=Patience(patience_s=120.0, longest_wait_s=0.5))


def greedy_request(prompt: list[int]) -> generation_pb2.GenerateRequest:
    return request_for(prompt, max_new_tokens=TOKENS, ignore_eos=True)


async def answers(pods: list[Pod]) -> list[list[int]]:
    async with client_of(pods) as client:
        done = await asyncio.gather(*(client.generate(greedy_request(prompt)) for prompt in PROMPTS))
    return [answer.token_ids for answer in done]


async def test_requests_are_answered_by_every_gateway(cluster: LocalCluster) -> None:
    first, second = gateways(cluster)
    expected = await answers([first])
    assert [len(tokens) for tokens in expected] == [TOKENS] * len(PROMPTS)
    assert await answers([second]) == expected
    speculators = [row for pod in (first, second) for row in (await status_of(pod)).speculators]
    assert {row.name for row in speculators} == {"ngram", "ssm"}, "nobody found the speculator service"
    assert all(row.ready for row in speculators)


async def test_the_http_service_asks_the_gateways(cluster: LocalCluster) -> None:
    (http,) = cluster.of("specinfer-http")
    expected = await answers(gateways(cluster))
    async with httpx2.AsyncClient(base_url=f"http://{http.address}:8000", timeout=60) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        body = {
            "model": model,
            "prompt": PROMPTS[0],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        reply = (await client.post("/v1/completions", json=body)).json()
    assert reply["usage"]["completion_tokens"] == len(expected[0])


async def test_the_pod_of_helm_test_gets_its_tokens(cluster: LocalCluster) -> None:
    (container,) = pod_of_helm_test()["spec"]["containers"]
    address = f"{gateways(cluster)[0].address}:50051"
    command = [part.replace("specinfer-gateway:50051", address) for part in container["command"]]
    assert command[0] == "specinfer"
    assert f"--address={address}" in command
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specinfer.cli", *command[1:]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, said = await process.communicate()
    assert process.returncode == 0, said.decode()[-2000:]
    assert printed.strip()


async def status_of(pod: Pod) -> generation_pb2.StatusReply:
    async with client_of([pod]) as client:
        return await client.status()


async def test_an_outage_of_redis_takes_gateways_out_and_restarts_none(cluster: LocalCluster) -> None:
    (redis,) = cluster.of("specinfer-redis")
    expected = await answers(gateways(cluster))
    assert redis.end() == 0
    for gateway in gateways(cluster):
        gateway.wait_for("readinessProbe", passes=False)
        assert gateway.probe("livenessProbe")
    redis.start()
    redis.wait_until_ready()
    for gateway in gateways(cluster):
        gateway.wait_for("readinessProbe", passes=True)
    assert await answers(gateways(cluster)) == expected


async def test_a_gateway_that_is_ended_loses_no_token(cluster: LocalCluster) -> None:
    """Clients start at the gateway that will end, and continue until it has ended."""
    expected = await answers(gateways(cluster))
    driving = [bool((await status_of(pod)).speculators) for pod in gateways(cluster)]
    first, second = sorted(gateways(cluster), key=lambda pod: not driving[gateways(cluster).index(pod)])
    assert sorted(driving) == [False, True], "one of them has the verifier: that one ends"
    ending = asyncio.create_task(asyncio.to_thread(first.end))

    async def ask(number: int) -> int:
        rounds = 0
        while not ending.done():
            async with client_of([first, second]) as client:
                answer = await client.generate(greedy_request(PROMPTS[number]))
            assert answer.token_ids == expected[number]
            rounds += 1
        return rounds

    rounds = await asyncio.gather(*(ask(number) for number in range(len(PROMPTS))))
    assert min(rounds) > 0
    assert await ending == 0, first.log[-1000:]
    while not (await status_of(second)).speculators:  # noqa: ASYNC110  # it takes the verifier
        await asyncio.sleep(0.1)
    first.start()
    first.wait_until_ready()
    assert await answers([first]) == expected


TYPOS = {
    "variable": ("SPECINFER_SPECULATOR_DRAFTER", "SPECINFER_SPECULATOR_DRAFTERS", "unknown setting"),
    "value": ("value: ngram", "value: ngrm", "SPECINFER_SPECULATOR_DRAFTER = 'ngrm'"),
    "command": ("- speculator_svc", "- speculators_svc", "No module named speculators_svc"),
    "health name": ("specinfer.v1.Speculator", "specinfer.v1.Drafter", "no service 'specinfer.v1.Drafter'"),
    "liveness": ("service: liveness", "service: livenes", "no service 'livenes'"),
    "volume": ("mountPath: /models", "mountPath: /model", "nothing is mounted at /models"),
    "Service links": ("enableServiceLinks: false", "enableServiceLinks: true", "unknown setting"),
    "program": ("- python", "- pithon", "No such file"),
}


@pytest.mark.parametrize("typo", [None, *TYPOS])
def test_a_typo_fails(typo: str | None, tmp_path: Path) -> None:
    """The negative control, with the service that starts fastest; without a typo it starts."""
    text = speculator_alone()
    if typo is None:
        with LocalCluster(read(text), tmp_path, tmp_path):
            return
    old, new, message = TYPOS[typo]
    assert old in text
    spoilt = read(text.replace(old, new))
    with (
        pytest.raises((AssertionError, LookupError, UnavailableError), match=f"(?s){message}"),
        LocalCluster(spoilt, tmp_path, tmp_path),
    ):
        pass


def speculator_alone() -> str:
    """Return the objects of one service, and a Service with an address."""
    objects = render(values={"speculator": {"settings": {"drafter": "ngram"}}}).objects
    kept = [row for row in objects if row["metadata"]["name"] == "specinfer-speculator"]
    link = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "specinfer-speculator-x"}}
    link["spec"] = {"selector": {}, "ports": [{"port": 1}]}
    return yaml.safe_dump_all([*kept, link])


def read(text: str) -> Rendered:
    return Rendered(list(yaml.safe_load_all(text)))
