"""Build the images from the Dockerfile, and run them.

This takes minutes and gigabytes, so the tests run only if $SPECINFER_TEST_IMAGES is set (`make test-images`). If it is
a path, images are kept there, and the next run builds only changed layers.
"""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from specinfer.model.native.build import VARIANTS, fitting, variant_path
from specinfer.system.cache_directory import cache_directory
from specinfer.system.machine import processor_flags
from tests.deploy.images.image_store import Container, ImageStore, make_base, why_not
from tests.support.models.saved_model import save_target

MODELS = Path(__file__).resolve().parents[3] / "models"
SHIPPED = {path.parent.name for path in MODELS.glob("*/model.safetensors")}

WANTED = os.environ.get("SPECINFER_TEST_IMAGES", "")
KEPT = Path(WANTED) if "/" in WANTED else None
REASON = why_not() if WANTED else "takes minutes: `make test-images`"
TARGETS = ("gateway", "http", "verifier", "speculator", "server", "tools")
PORTS = {"gateway": 50051, "http": 8000, "verifier": 50052, "speculator": 50053, "server": 8000}
GATEWAY_MEGABYTES = 300
USER = 10001

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    """An image store with only the base image, which is created once per machine."""
    tarball = cache_directory() / "test-images" / "base.tar"
    if not tarball.exists():
        make_base(tarball)
    store = ImageStore(KEPT or tmp_path_factory.mktemp("images"))
    try:
        store.add_base(tarball)
        yield store
    finally:
        store.empty() if KEPT else store.close()


@pytest.fixture(scope="module")
def images(store: ImageStore) -> dict[str, str]:
    """Names of all images by target; images with torch share layers."""
    return {target: store.build(target) for target in TARGETS}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model volume with a tiny model for the compiled kernels, readable by all users."""
    directory = tmp_path_factory.mktemp("models")
    save_target(directory / "tiny", head_dim=16)
    for path in (directory, directory.parent, *directory.rglob("*")):
        path.chmod(0o755)
    return directory


@dataclass(frozen=True, slots=True)
class System:
    """A container of each image, with running services."""

    containers: dict[str, Container]
    address: str


@pytest.fixture(scope="module")
def system(
    store: ImageStore,
    images: dict[str, str],
    models: Path,
    redis_server: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[System]:
    """Run the services at their images' default ports, with a Redis."""
    directory = tmp_path_factory.mktemp("containers")
    containers = {name: store.container(images[name], directory / name) for name in TARGETS}
    settings = {
        "verifier": {"MODEL": "/models/tiny"},
        "speculator": {"MODEL": "/models/tiny", "DRAFTER": "ngram+ssm"},
        "gateway": {
            "MODEL": "/models/tiny",
            "VERIFIERS": "127.0.0.1:50052",
            "SPECULATORS": "127.0.0.1:50053",
            "REDIS_URL": redis_server,
        },
        "http": {"GATEWAYS": "127.0.0.1:50051"},
    }
    with ExitStack() as stack:
        for name, values in settings.items():
            variables = {f"SPECINFER_{name.upper()}_{key}": value for key, value in values.items()}
            if name != "http":
                variables[f"SPECINFER_{name.upper()}_METRICS_PORT"] = "0"
            child = containers[name].start(models, variables)
            stack.callback(child.kill)
            assert containers[name].healthy(models, timeout_s=180), containers[name].log()
        yield System(containers, "127.0.0.1:50051")


def test_sizes(store: ImageStore, images: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {target: store.megabytes(image) for target, image in images.items()}
    with capsys.disabled():
        print("\nimages, MB, not compressed:", {target: round(size) for target, size in sizes.items()})
    assert sizes["gateway"] < GATEWAY_MEGABYTES


def test_images_say_how_they_are_run(store: ImageStore, images: dict[str, str]) -> None:
    for target, image in images.items():
        configuration = store.configuration(image)
        assert configuration["User"] == f"{USER}:{USER}"
        assert configuration["StopSignal"] == "SIGTERM"
        assert configuration["Labels"]["org.opencontainers.image.version"] == "test"
        assert "OMP_WAIT_POLICY=PASSIVE" in configuration["Env"]
        assert target == "tools" or str(PORTS[target]) in configuration["Healthcheck"]["Test"][-1]


def test_a_prompt_is_answered_by_the_containers_together(system: System, models: Path) -> None:
    question = [
        "generate",
        "2 + 2 = ",
        "--raw",
        "--json",
        "--max-new-tokens",
        "24",
        "--address",
        system.address,
    ]
    answer = json.loads(system.containers["tools"].run(models, "specinfer", *question))
    assert answer["new_tokens"] > 0
    assert answer["speculators"]["ssm"]["drafted"] > 0


def test_the_api_of_openai_answers(system: System, models: Path) -> None:
    asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/v1/models').read().decode())"
    answer = json.loads(system.containers["http"].run(models, "python", "-c", asked))
    assert [model["object"] for model in answer["data"]] == ["model"]


def test_services_run_as_nobody_in_particular_and_write_nowhere(system: System) -> None:
    for name in ("gateway", "http", "verifier", "speculator"):  # the server runs in a test of its own
        assert system.containers[name].user() == USER
        assert system.containers[name].written() == set()


def test_kernels_are_those_of_the_image_and_there_is_no_compiler(system: System, models: Path) -> None:
    best = fitting(processor_flags())[0]
    for name in ("verifier", "speculator"):
        container = system.containers[name]
        assert f"native kernels: {variant_path(Path(), best)}" in container.log()
        assert "torch executor" not in container.log()
        kernels = container.run(models, "ls", "/opt/kernels").split()
        assert set(kernels) == {variant_path(Path(), variant).name for variant in VARIANTS}
        assert container.run(models, "sh", "-c", "command -v g++ gcc cc c++", check=False) == ""


def test_the_gateway_has_no_torch_and_no_pip(system: System, models: Path) -> None:
    code = (
        "import importlib.util as u; print([n for n in ('torch', 'transformers', 'pip') if u.find_spec(n)])"
    )
    assert system.containers["gateway"].run(models, "python", "-c", code) == "[]"
    assert system.containers["verifier"].run(models, "python", "-c", code) == "['torch', 'transformers']"
    assert system.containers["tools"].run(models, "python", "-c", code) == "['torch', 'transformers', 'pip']"


def test_no_model_weights_are_in_an_image_but_those_of_the_project(system: System) -> None:
    weights = {
        name: {path.parent.name for path in container.files if path.suffix in (".safetensors", ".gguf")}
        for name, container in system.containers.items()
    }
    light = {"gateway": set[str](), "http": set[str]()}
    assert weights == light | {name: SHIPPED for name in TARGETS if name not in light}


def test_sigterm_drains_and_ends_with_success(system: System) -> None:
    """This test stops the services, so later tests start their own."""
    for name in ("http", "gateway", "speculator", "verifier"):
        container = system.containers[name]
        container.signal(signal.SIGTERM)
        assert container.child is not None
        assert container.child._process.wait(60) == 0, container.log()
        assert "draining" in container.log()


def test_the_server_answers_alone(
    store: ImageStore, images: dict[str, str], models: Path, tmp_path: Path
) -> None:
    """The last test, as it uses the port of the HTTP service."""
    server = store.container(images["server"], tmp_path)
    child = server.start(
        models, {"SPECINFER_SERVE_MODEL": "/models/tiny", "SPECINFER_SERVE_SERVED_MODEL_NAME": "tiny"}
    )
    try:
        assert server.healthy(models, timeout_s=180), server.log()
        body = json.dumps({"model": "tiny", "prompt": "2 + 2 = ", "max_tokens": 8}).encode()
        asked = urllib.request.Request("http://127.0.0.1:8000/v1/completions", body)
        asked.add_header("content-type", "application/json")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] > 0
        assert (server.user(), server.written()) == (USER, set())
        server.signal(signal.SIGTERM)
        assert child._process.wait(60) == 0, server.log()
    finally:
        child.kill()
