"""Options of a local system: speculators from text, flags of services, environment of services."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specinfer.cli.local import system as local
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import Child, check_http
from specinfer.cli.local.system import LocalSystem, _arguments
from specinfer.cli.main import app
from specinfer.cli.options.up import GatewayFlags, HttpFlags, UpFlags, changed
from specinfer.drafters.pools import read_speculators
from specinfer.errors import InvalidInputError


def test_speculators_are_read_with_their_flags() -> None:
    pool = read_speculators(
        ["ngram+ssm,model=my-ssm,weights=q8_0", "ssm,model=other", "ssm", "custom,function=a:b"]
    )
    assert pool == {
        "ngram+ssm": {"drafter": "ngram+ssm", "model": "my-ssm", "weights": "q8_0"},
        "ssm": {"drafter": "ssm", "model": "other"},
        "ssm-3": {"drafter": "ssm"},
        "custom": {"drafter": "custom", "function": "a:b"},
    }
    assert read_speculators(None) is None
    assert read_speculators(["none"]) == {}


def test_the_verifier_hosts_a_draft_unless_services_are_named() -> None:
    usual, named = LocalOptions(), LocalOptions(speculators={"ngram": {"drafter": "ngram"}})
    assert (usual.hosted_draft, list(usual.services)) == ("auto", ["suffix"])
    assert (named.hosted_draft, named.hosted, list(named.services)) == ("none", None, ["ngram"])
    both = LocalOptions(speculators={"ngram": {"drafter": "ngram"}}, draft="ssm,beam=2")
    assert both.hosted == {"drafter": "ssm", "beam": "2"}


@pytest.mark.parametrize("text", ["", ",model=x", "ssm,model", "ssm,q8_0"])
def test_what_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(InvalidInputError, match="speculator = "):
        read_speculators([text])


def test_switches_have_no_value_on_a_command_line() -> None:
    assert _arguments("suffix_learn", "true") == ["--suffix-learn"]
    assert _arguments("adaptive", "false") == ["--no-adaptive"]
    assert _arguments("model", "x") == ["--model", "x"]


def test_services_get_their_environment_variables_unless_the_user_sets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environments: list[Mapping[str, str]] = []
    monkeypatch.setattr(
        local, "Child", lambda name, command, log, environment: environments.append(environment)
    )
    monkeypatch.delenv("GRPC_EXPERIMENTS", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    system = LocalSystem(LocalOptions())
    system._spawn("gateway", "gateway", {})
    expected = {"GRPC_EXPERIMENTS": local.SERVICE_ENVIRONMENT["GRPC_EXPERIMENTS"]}
    assert environments == [expected | {"SPECINFER_INSTANCE": system.instance}]


def test_the_gateway_uses_running_services_and_those_that_are_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: dict[str, list[str]] = {}

    def record(name: str, command: list[str], *_: object) -> None:
        started[name] = command

    monkeypatch.setattr(local, "Child", record)
    monkeypatch.setattr(LocalSystem, "wait_for", lambda *_: None)
    system = LocalSystem(LocalOptions(addresses=("127.0.0.1:7", "other:8")))
    system.redis_url = "redis://nowhere"
    system._start()
    given = started["gateway"][started["gateway"].index("--speculators") + 1].split(",")
    assert given == [started["suffix"][started["suffix"].index("--listen") + 1], "127.0.0.1:7", "other:8"]


def test_a_draft_of_a_service_gets_the_served_model_as_target(monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, list[str]] = {}
    monkeypatch.setattr(local, "Child", lambda name, command, *_: started.update({name: command}))
    monkeypatch.setattr(LocalSystem, "wait_for", lambda *_: None)
    pool = {"dflash": {"drafter": "dflash", "model": "draft"}, "ngram": {"drafter": "ngram"}}
    system = LocalSystem(LocalOptions(model="served", speculators=pool))
    system.redis_url = "redis://nowhere"
    system._start()
    flags = started["dflash"]
    assert [flags[flags.index(flag) + 1] for flag in ("--model", "--target")] == ["draft", "served"]
    assert "--target" not in started["ngram"]


@pytest.mark.parametrize("device", [None, "cuda:1"])
def test_on_a_gpu_speculators_have_loaded_before_the_verifier_starts(
    device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their memory is no longer free when the verifier chooses the size of its cache."""
    seen: list[str] = []
    monkeypatch.setattr(local, "Child", lambda name, *_: seen.append(name))
    monkeypatch.setattr(LocalSystem, "wait_for", lambda self, name, address: seen.append(f"{name} is ready"))
    pool = {name: {"drafter": "ngram"} for name in ("a", "b")}
    system = LocalSystem(LocalOptions(model="served", speculators=pool, device=device))
    system.redis_url = "redis://nowhere"
    system._start()
    speculators = ["a", "b", "a is ready", "b is ready"]
    first = [*speculators, "verifier", "verifier is ready"]
    together = ["verifier", "a", "b", "verifier is ready", "a is ready", "b is ready"]
    assert seen == [*(first if device else together), "gateway", "gateway is ready"]


def test_names_over_http_need_the_http_service() -> None:
    flags = ["up", "--http-listen", "none", "--served-model-name", "x"]
    result = CliRunner().invoke(app, flags)
    assert isinstance(result.exception, InvalidInputError)
    assert str(result.exception) == "served_model_name = 'x': needs --http-listen HOST:PORT, not none"


def test_missing_packages_of_the_http_service_are_reported_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specinfer.cli.local.processes.find_spec", lambda name: None)
    with pytest.raises(
        InvalidInputError,
        match=r"http_listen = '127.0.0.1:1':",
    ):
        check_http("127.0.0.1:1")


def test_an_ended_service_is_reported_with_its_error_not_a_later_line(tmp_path: Path) -> None:
    script = "echo 'verifier_svc: error: --device: no GPU'; echo 'CRITICAL rank 0 ended'; exit 2"
    child = Child("verifier", ["sh", "-c", script], tmp_path / "log", {})
    child.join(timeout_s=30.0)
    assert child.end() == "verifier ended with code 2: verifier_svc: error: --device: no GPU"


def test_up_passes_on_options_that_are_not_the_defaults() -> None:
    assert changed(UpFlags()) == changed(GatewayFlags()) == changed(HttpFlags()) == {}
    assert changed(UpFlags(threads=1, kv_tokens="auto")) == {"threads": "1", "kv-tokens": "auto"}
    assert changed(GatewayFlags(max_batch=3, vllm_metrics=True)) == {"max-batch": "3", "vllm-metrics": "true"}
    assert changed(HttpFlags(tls_certificate="c.pem")) == {"tls-certificate": "c.pem"}
