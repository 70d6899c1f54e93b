"""Who may import whom (docs/architecture.md), read from the source of every module."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOUSES = ("gateway", "verifier_svc", "speculator_svc")
TORCH = {"torch", "transformers", "safetensors", "gguf"}
SERVICE = {"grpc", "grpc_health", "grpc_reflection", "prometheus_client", "pydantic", "pydantic_settings"}
TERMINAL = {"typer", "rich", "grpc", "grpc_health", "huggingface_hub"}

# package or module -> (our packages it may import, third parties it may import); longest prefix wins
RULES: dict[str, tuple[set[str], set[str]]] = {
    "specinfer.errors": (set(), set()),
    "specinfer.entry_status": (set(), set()),
    "specinfer.sampling": ({"specinfer.errors"}, set()),
    "specinfer.processor": (set(), set()),
    "specinfer.prompts": ({"specinfer.errors"}, set()),
    "specinfer.tree": ({"specinfer.errors", "specinfer.tree"}, {"numpy"}),
    "specinfer.tokenizer": ({"specinfer.errors"}, {"tokenizers", "jinja2"}),
    "specinfer.hub": (
        {"specinfer.errors", "specinfer.hub", "specinfer.model.convert"},
        {"huggingface_hub"},
    ),
    "specinfer.wire": (
        {"specinfer.tree", "specinfer.sampling", "specinfer.errors", "specinfer.v1", "specinfer.wire"},
        {"grpc", "numpy"},
    ),
    "specinfer.service": ({"specinfer.errors", "specinfer.wire.status", "specinfer.service"}, SERVICE),
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
    "specinfer.cli": ({"specinfer"}, TERMINAL),
    "verifier_svc.acceptance": (
        {
            "specinfer.tree",
            "specinfer.sampling",
            "specinfer.model",
            "specinfer.errors",
            "verifier_svc.acceptance",
        },
        {"numpy"},
    ),
    "speculator_svc.drafters": (
        {
            "specinfer.tree",
            "specinfer.sampling",
            "specinfer.model",
            "specinfer.errors",
            "specinfer.hub",
            "specinfer.tokenizer",
            "speculator_svc.drafters",
        },
        {"numpy", "torch"},
    ),
    "gateway.request": ({"specinfer.tree", "specinfer.sampling", "specinfer.errors"}, {"numpy"}),
    "gateway.budget": (set(), {"numpy"}),
    "gateway.costs": ({"gateway.passes"}, set()),
    "gateway.gains": ({"specinfer.tree", "gateway.costs"}, set()),
    "gateway.worth": (set(), {"numpy"}),
    "gateway.passes": (set(), {"numpy"}),
    "gateway.planner": (
        {"specinfer.tree", *(f"gateway.{name}" for name in ("costs", "gains", "passes", "worth"))},
        set(),
    ),
    "gateway.lessons": ({"specinfer.tree", "specinfer.entry_status", "gateway"}, set()),
    "gateway.calibration": ({"specinfer.tree"}, {"numpy"}),
    "gateway.scheduler": (
        {"specinfer.tree", "specinfer.errors", "specinfer.entry_status", "gateway.request", "gateway.budget"},
        {"numpy"},
    ),
    "gateway.store": ({"specinfer.errors", "gateway"}, {"redis"}),
    "gateway": (
        {
            "gateway",
            *(
                f"specinfer.{name}"
                for name in ("errors", "entry_status", "sampling", "tree", "tokenizer", "hub", "wire")
            ),
            *(f"specinfer.{name}" for name in ("service", "v1")),
        },
        SERVICE,
    ),
    "speculator_svc.training": (
        {
            *(f"specinfer.{name}" for name in ("errors", "model", "hub", "tokenizer", "prompts")),
            "speculator_svc.training",
        },
        {"numpy", "torch", "typer", "rich"},
    ),
    "verifier_svc": ({"verifier_svc", "specinfer"}, SERVICE | {"torch"}),
    "speculator_svc": ({"speculator_svc", "specinfer"}, SERVICE | {"torch"}),
}
FORBIDDEN_STDLIB = {
    "gateway.scheduler": {"asyncio"},
    "gateway.request": {"asyncio"},
    "gateway.budget": {"asyncio"},
    "gateway.costs": {"asyncio"},
    "gateway.passes": {"asyncio"},
    "gateway.gains": {"asyncio"},
    "gateway.worth": {"asyncio"},
    "gateway.planner": {"asyncio"},
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
            if top in FORBIDDEN_STDLIB.get(name, set()):
                bad.append(f"{name} imports {target}")
        elif top not in third_party:
            bad.append(f"{name} imports {target}")
    return bad


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_module_stays_in_its_layer(name: str, path: Path) -> None:
    assert violations(name, imports(path)) == []


def test_the_check_notices_what_it_should() -> None:
    assert violations("gateway.loop", {"torch"})
    assert violations("gateway.loop", {"specinfer.model.runner"})
    assert violations("gateway.loop", {"verifier_svc.engine"})
    assert violations("gateway.scheduler", {"asyncio"})
    assert violations("gateway.loop", {"redis.asyncio"})
    assert violations("specinfer.model.runner", {"grpc"})
    assert not violations("gateway.store", {"redis.asyncio", "asyncio"})


def test_the_gateway_runs_without_torch() -> None:
    """Not only its own imports: nothing it loads loads torch."""
    import subprocess
    import sys

    code = "import sys, gateway.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
