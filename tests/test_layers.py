"""Who may import whom (docs/architecture.md), read from the source of every module."""

import ast
import re
from collections.abc import Container
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOUSES = ("gateway", "http_svc", "verifier_svc", "speculator_svc")
TORCH = {"torch", "transformers", "safetensors", "gguf"}
SERVICE = {
    "opentelemetry",
    "grpc",
    "grpc_health",
    "grpc_reflection",
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
}
TERMINAL = {"typer", "rich", "grpc", "grpc_health", "huggingface_hub"}

# package or module -> (our packages it may import, third parties it may import); longest prefix wins
RULES: dict[str, tuple[set[str], set[str]]] = {
    "specinfer.errors": (set(), set()),
    "specinfer.cache_directory": (set(), set()),
    "specinfer.entry_status": (set(), set()),
    "specinfer.sampling": ({"specinfer.errors"}, set()),
    "specinfer.logprobs": (set(), set()),
    "specinfer.parent_process": (set(), set()),
    "specinfer.processor": (set(), set()),
    "specinfer.prompts": ({"specinfer.errors"}, set()),
    "specinfer.usage": (set(), {"typer"}),
    "specinfer.tree": ({"specinfer.errors", "specinfer.tree"}, {"numpy"}),
    "specinfer.constraints": (
        {"specinfer.constraints", "specinfer.errors", "specinfer.parent_process"},
        {"llguidance", "numpy"},
    ),
    "specinfer.constraints.constraint": ({"specinfer.errors"}, set()),
    "specinfer.tokenizer": (
        {"specinfer.byte_decoder", "specinfer.errors", "specinfer.tool_words"},
        {"tokenizers", "jinja2"},
    ),
    "specinfer.byte_decoder": (set(), set()),
    "specinfer.detokenizer": ({"specinfer.byte_decoder", "specinfer.tokenizer"}, set()),
    "specinfer.tool_words": (set(), set()),
    "specinfer.hub": (
        {
            "specinfer.errors",
            "specinfer.cache_directory",
            "specinfer.hub",
            *(f"specinfer.model.weights.{name}" for name in ("convert", "widen")),
        },
        {"huggingface_hub"},
    ),
    "specinfer.wire": (
        {
            *(f"specinfer.{name}" for name in ("tree", "sampling", "errors", "v1", "wire")),
            "specinfer.constraints.constraint",
        },
        {"grpc", "numpy"},
    ),
    "specinfer.service": ({"specinfer.errors", "specinfer.wire.status", "specinfer.service"}, SERVICE),
    "specinfer.model.native": (
        {"specinfer.errors", "specinfer.cache_directory", "specinfer.processor", "specinfer.model.native"},
        {"numpy"},
    ),
    "specinfer.model.cache": ({"specinfer.errors", "specinfer.model.cache"}, {"numpy"}),
    "specinfer.model.batch": ({"specinfer.model.cache"}, {"numpy"}),
    "specinfer.model.weights": ({"specinfer.errors", "specinfer.model.weights"}, {"numpy", *TORCH}),
    "specinfer.model.sampling": (
        {
            "specinfer.tree",
            "specinfer.sampling",
            *(f"specinfer.model.{room}" for room in ("native", "sampling")),
        },
        {"numpy", "torch"},
    ),
    "specinfer.model.torch": (
        {
            "specinfer.errors",
            *(f"specinfer.model.{room}" for room in ("batch", "cache", "layers", "weights")),
        },
        {"numpy", "torch"},
    ),
    "specinfer.model.gpu": (
        {
            "specinfer.errors",
            "specinfer.sampling",
            "specinfer.tree",
            *(f"specinfer.model.{room}" for room in ("batch", "cache", "device", "drafting", "layers")),
            *(f"specinfer.model.{room}" for room in ("sampling", "weights")),
        },
        {"numpy", "rich", "torch", "torchao", "triton"},
    ),
    "specinfer.model.offload": (
        {
            *("specinfer.errors", "specinfer.cache_directory"),
            *(f"specinfer.model.{room}" for room in ("layers", "offload", "weights")),
        },
        {"numpy", "torch"},
    ),
    "specinfer.model.drafting.eagle": (
        {
            "specinfer.tree",
            *(f"specinfer.model.{room}" for room in ("batch", "cache", "drafting", "layers", "weights")),
        },
        {"torch"},
    ),
    "specinfer.model.drafting": (
        {
            "specinfer.tree",
            "specinfer.sampling",
            *(f"specinfer.model.{room}" for room in ("batch", "cache", "drafting", "native", "sampling")),
        },
        {"numpy", "torch"},
    ),
    "specinfer.model.parallel": (
        {
            "specinfer.errors",
            *(f"specinfer.model.{room}" for room in ("batch", "cache", "executors", "layers", "parallel")),
            "specinfer.model.weights",
        },
        {"numpy", "torch"},
    ),
    "specinfer.model": (
        {
            "specinfer.tree",
            "specinfer.sampling",
            "specinfer.errors",
            "specinfer.processor",
            "specinfer.model",
        },
        {"numpy", *TORCH},
    ),
    "specinfer.client": (
        {
            "specinfer.errors",
            "specinfer.service.channel",
            "specinfer.service.threads",
            "specinfer.service.tls",
            "specinfer.wire.status",
            "specinfer.v1",
            "specinfer.client",
        },
        {"grpc"},
    ),
    "specinfer.client.resume": (
        {
            *(f"specinfer.client.{name}" for name in ("errors", "failure", "logprobs", "summary")),
            "specinfer.v1",
        },
        set(),
    ),
    "specinfer.speculators": (
        {
            *(f"specinfer.{name}" for name in ("entry_status", "errors", "sampling", "service", "tree")),
            *(f"specinfer.{name}" for name in ("speculators", "v1", "wire")),
        },
        {"grpc", "numpy"},
    ),
    "specinfer.planning.calibration": ({"specinfer.tree"}, {"numpy"}),
    "specinfer.speculators.deadline": (set(), set()),
    "specinfer.speculators.states": (set(), {"numpy"}),
    "specinfer.integrations": (
        {
            *(f"specinfer.{name}" for name in ("errors", "integrations", "service", "speculators")),
            *(f"specinfer.{name}" for name in ("tokenizer", "tree")),
        },
        {"numpy", "pydantic", "pydantic_settings", "transformers"},
    ),
    "specinfer.cli": ({"specinfer"}, TERMINAL),
    "benchmarks.suite.assisted": ({"specinfer.hub", "specinfer.model"}, {"torch", "transformers"}),
    "benchmarks.suite.measure": ({"specinfer"}, {"prometheus_client"}),
    "benchmarks.suite.perplexity": ({"specinfer"}, {"numpy"}),
    "benchmarks.suite.plots": (
        {"benchmarks.suite.paper", "benchmarks.suite.pools"},
        {"matplotlib"},
    ),
    "specinfer.verification.acceptance": (
        {
            "specinfer.tree",
            "specinfer.sampling",
            "specinfer.model",
            "specinfer.errors",
            "specinfer.verification.acceptance",
        },
        {"numpy"},
    ),
    "specinfer.verification.adjustments": (
        {
            *("specinfer.constraints", "specinfer.errors", "specinfer.sampling"),
            *("specinfer.verification.adjustments", "specinfer.verification.jobs"),
        },
        {"numpy"},
    ),
    "specinfer.drafters": (
        {
            "specinfer.tree",
            "specinfer.sampling",
            "specinfer.model",
            "specinfer.errors",
            "specinfer.hub",
            "specinfer.tokenizer",
            "specinfer.drafters",
        },
        {"numpy", "torch"},
    ),
    "specinfer.scheduling.statistics": ({"specinfer.tree"}, set()),
    "specinfer.scheduling.request": (
        {
            "specinfer.scheduling.statistics",
            "specinfer.constraints.constraint",
            *("specinfer.sampling", "specinfer.errors", "specinfer.tree"),
        },
        set(),
    ),
    "specinfer.scheduling.limits": (set(), set()),
    "specinfer.scheduling.entries": (
        {
            *(f"gateway.requests.{name}" for name in ("request", "speculation")),
            *("specinfer.entry_status", "specinfer.logprobs", "specinfer.tree"),
        },
        set(),
    ),
    "specinfer.planning": (
        {
            *("specinfer.tree", "specinfer.entry_status", "specinfer.planning.calibration"),
            "specinfer.errors",
            *("specinfer.planning", "gateway.requests"),
        },
        {"numpy"},
    ),
    "gateway.training": ({"specinfer.planning", "specinfer.errors", "specinfer.usage"}, {"numpy", "typer"}),
    "gateway.api.callers": (set(), set()),
    "specinfer.scheduling.queue": (set(), set()),
    "specinfer.scheduling.request_table": (
        {"specinfer.errors", "specinfer.scheduling.queue", "specinfer.scheduling.request"},
        set(),
    ),
    "specinfer.scheduling.limits": (set(), set()),
    "specinfer.scheduling.queue": (set(), set()),
    "specinfer.scheduling.queue": ({"specinfer.scheduling.queue", "specinfer.scheduling.request"}, set()),
    "specinfer.scheduling.limits": (
        {*(f"gateway.requests.{name}" for name in ("budget", "limits", "request")), "specinfer.tree"},
        set(),
    ),
    "specinfer.scheduling.batch": (
        {f"gateway.requests.{name}" for name in ("queue", "request", "room")},
        set(),
    ),
    "specinfer.scheduling.entries": (
        {
            "specinfer.tree",
            *(f"gateway.requests.{name}" for name in ("budget", "limits", "request", "room", "step")),
        },
        set(),
    ),
    "specinfer.scheduling.commit": (
        {
            "specinfer.tree",
            "specinfer.entry_status",
            "specinfer.scheduling.request",
            "specinfer.scheduling.entries",
        },
        set(),
    ),
    "specinfer.scheduling.scheduler": (
        {
            "specinfer.tree",
            "specinfer.errors",
            *(
                f"gateway.requests.{name}"
                for name in ("batch", "budget", "entries", "finish_rate", "held", "limits", "request")
            ),
            *(f"gateway.requests.{name}" for name in ("room", "step", "verdicts")),
        },
        set(),
    ),
    "specinfer.scheduling.target_outputs": ({"specinfer.speculators.states", "specinfer.v1"}, {"numpy"}),
    "specinfer.scheduling.target_outputs": ({"specinfer.tree", "specinfer.v1"}, {"numpy"}),
    "gateway.store": (
        {
            *("specinfer.constraints.constraint", "specinfer.errors", "specinfer.logprobs"),
            *("specinfer.sampling", "gateway"),
        },
        {"redis"},
    ),
    "gateway": (
        {
            "gateway",
            *(
                f"specinfer.{name}"
                for name in ("errors", "entry_status", "sampling", "tree", "tokenizer", "hub", "wire")
            ),
            *(f"specinfer.{name}" for name in ("constraints", "logprobs", "service", "speculators", "v1")),
            "specinfer.detokenizer",
        },
        SERVICE,
    ),
    "http_svc.schemas": (
        {f"http_svc.{name}" for name in ("fields", "forms", "tools")},
        {"pydantic", "pydantic_core"},
    ),
    "http_svc.tools": ({"http_svc.fields"}, {"pydantic"}),
    "http_svc.tools": ({"http_svc.tools"}, set()),
    "http_svc.fields": (set(), {"pydantic", "pydantic_core"}),
    "http_svc.schemas": ({"http_svc.fields"}, {"pydantic", "pydantic_core"}),
    "http_svc.to_gateway": (
        {*(f"specinfer.{n}" for n in ("client", "errors", "v1")), "http_svc.schemas", "http_svc.tools"},
        set(),
    ),
    "http_svc.responses": ({"specinfer.client"}, set()),
    "http_svc.responses": ({"specinfer.client", "http_svc.responses", "http_svc.tools"}, set()),
    "http_svc.page_routes": ({"specinfer.v1"}, set()),
    "http_svc": (
        {"http_svc", *(f"specinfer.{name}" for name in ("client", "errors", "service", "v1"))},
        SERVICE | {"fastapi", "starlette", "uvicorn"},
    ),
    "specinfer.drafters.contexts": (
        {"specinfer.speculators.states", "specinfer.drafters"},
        {"numpy"},
    ),
    "speculator_svc.training": (
        {
            *(f"specinfer.{name}" for name in ("errors", "model", "hub", "tokenizer", "prompts", "usage")),
            "speculator_svc.training",
        },
        {"numpy", "torch", "typer", "rich"},
    ),
    "verifier_svc": ({"verifier_svc", "specinfer"}, SERVICE | {"torch"}),
    "speculator_svc": ({"speculator_svc", "specinfer"}, SERVICE | {"torch"}),
}
PURE = (
    *("batch", "budget", "caller", "entries", "finish_rate", "held", "limits", "logprobs", "queue"),
    *("ranking", "request", "room", "scheduler", "speculation", "step", "verdicts"),
)
FORBIDDEN_STDLIB = {
    **{
        f"gateway.clients.{name}": {"asyncio", "time"}
        for name in (
            *("addresses", "draft_faults", "features", "pool_policy"),
            *("quarantine", "replicas", "target_relay", "top_k", "tree_share"),
        )
    },
    **{f"specinfer.speculators.{name}": {"asyncio", "time"} for name in ("calibration", "deadline")},
    "specinfer.speculators.service": {"asyncio", "time"},
    "specinfer.integrations.vllm.contexts": {"asyncio", "time"},
    "specinfer.client.resume": {"asyncio", "random", "time"},
    **{
        f"http_svc.{name}": {"asyncio", "time"}
        for name in ("bodies", "errors", "logprobs", "orders", "replies", "steps")
    },
    "specinfer.planning": {"asyncio"},
    **{f"gateway.requests.{name}": {"asyncio", "time", "random"} for name in PURE},
}


def modules() -> list[tuple[str, Path]]:
    found = []
    for package in ("specinfer", *HOUSES):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if not name.startswith("specinfer.v1") and name != "specinfer":
                found.append((name, path))
    return found


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def violations(name: str, imported: set[str]) -> list[str]:
    import sys

    rule = max((key for key in RULES if within(name, {key})), key=len)
    ours, third_party = RULES[rule]
    bad = []
    for target in sorted(imported):
        top = target.split(".")[0]
        if top in ("specinfer", *HOUSES, "models"):
            if not within(target, ours) and target != "specinfer.__version__":
                bad.append(f"{name} imports {target}")
        elif top in sys.stdlib_module_names:
            if any(within(name, {package}) and top in names for package, names in FORBIDDEN_STDLIB.items()):
                bad.append(f"{name} imports {target}")
        elif top not in third_party:
            bad.append(f"{name} imports {target}")
    return bad


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_module_stays_in_its_layer(name: str, path: Path) -> None:
    assert violations(name, imports(path)) == []


def test_the_check_notices_what_it_should() -> None:
    assert violations("gateway.session.loop", {"torch"})
    assert violations("gateway.session.loop", {"specinfer.model.runner"})
    assert violations("gateway.session.loop", {"specinfer.verification.engine"})
    assert violations("specinfer.scheduling.scheduler", {"asyncio"})
    assert violations("specinfer.scheduling.queue", {"time"})
    assert violations("gateway.session.loop", {"redis.asyncio"})
    assert violations("specinfer.model.runner", {"grpc"})
    assert not violations("gateway.store.connection", {"redis.asyncio", "asyncio"})


@pytest.mark.parametrize("house", ["gateway", "http_svc"])
def test_runs_without_torch(house: str) -> None:
    """Not only its own imports: nothing it loads loads torch."""
    import subprocess
    import sys

    code = f"import sys, {house}.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def rooms() -> dict[str, set[str]]:
    """Package or top module of `specinfer` and `specinfer.model` -> those it imports."""
    names = [name for name, _ in modules()]
    found: dict[str, set[str]] = {}
    for name, path in modules():
        if name.startswith("specinfer."):
            here = room(name)
            targets = {room(target) for target in imports(path) if within(target, set(names))}
            found.setdefault(here, set()).update(target for target in targets if target != here)
    return found


def room(name: str) -> str:
    depth = 3 if name.startswith("specinfer.model.") else 2
    return ".".join(name.split(".")[:depth])


def headers() -> dict[str, set[str]]:
    """C++ source -> what it includes of ours, both below `csrc`."""
    folder = ROOT / "specinfer" / "model" / "native" / "csrc"
    sources = [path for pattern in ("*.h", "*.cpp") for path in folder.rglob(pattern)]
    return {
        path.relative_to(folder).as_posix(): set(re.findall(r'#include "([^"]+)"', path.read_text()))
        for path in sources
    }


def circle(graph: dict[str, set[str]]) -> tuple[str, ...]:
    """What is part of a circle or leads to one only; empty if there is none."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return tuple(error.args[1])
    return ()


def test_nothing_imports_in_a_circle() -> None:
    ours = dict(modules())
    exact = {
        name: {module_of(target, ours) for target in imports(path)} - {name, ""}
        for name, path in ours.items()
    }
    assert circle(exact) == ()
    assert circle(rooms()) == ()


def module_of(target: str, ours: Container[str]) -> str:
    """The module that an imported name is or lies in; empty if it is none of ours."""
    return next((name for name in (target, target.rpartition(".")[0]) if name in ours), "")


def test_no_headers_include_each_other() -> None:
    assert len(headers()) > 15
    assert all(included in headers() for found in headers().values() for included in found)
    assert circle(headers()) == ()


def test_circles_are_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert "specinfer.model.native" in rooms()["specinfer.model.sampling"]
