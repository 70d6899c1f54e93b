"""Options of services in help and in errors: mistyped ones, and names of other systems."""

import asyncio

import pytest

from all_in_one.settings import ServeSettings
from gateway.settings import GatewaySettings
from http_svc.settings import HttpSettings
from specinfer.errors import SettingError
from specinfer.llm.options import LLMOptions
from specinfer.options.option_names import meant
from specinfer.service.entry_point import run_service
from specinfer.service.settings import ProcessSettings
from speculator_svc.settings import SpeculatorSettings
from verifier_svc.settings import VerifierSettings

FOREIGN = [
    *(("--speculator", "--draft"), ("-md", "--draft"), ("--model-draft", "--draft"), ("-m", "--model")),
    *(("--n-gpu-layers", "--device"), ("-ngl", "--device"), ("-t", "--threads"), ("-c", "--max-context-len")),
    *(("--max_model_len", "--max-context-len"), ("--max-num-seqs", "--max-batch"), ("-np", "--max-batch")),
    *(("-ctk", "--kv-type"), ("--kv-cache-dtype", "--kv-type"), ("--port", "--listen")),
]
MISTYPED = [
    *(("--modle", "--model"), ("--trheads", "--threads"), ("--kv-token", "--kv-tokens")),
    *(("--max_batch", "--max-batch"), ("--drafts", "--draft"), ("--log", "--log-level")),
]


@pytest.mark.parametrize(("given", "option"), FOREIGN + MISTYPED)
def test_serve_names_the_option_that_was_meant(given: str, option: str) -> None:
    with pytest.raises(SettingError) as caught:
        ServeSettings.load("specinfer serve", [given, "3"])
    assert str(caught.value) == f"arguments = {given!r}: no such option, did you mean {option}?"


def test_an_option_of_another_service_is_not_suggested() -> None:
    with pytest.raises(SettingError, match="no such option; see --help"):
        GatewaySettings.load("gateway", ["--n-gpu-layers=3"])


@pytest.mark.parametrize(
    ("given", "option"),
    [("max_num_seq", "max_num_seqs"), ("n_ctx", "max_model_len"), ("kv_cache_dtype", "kv_type")],
)
def test_keyword_arguments_are_suggested_too(given: str, option: str) -> None:
    with pytest.raises(TypeError, match=f"unknown option '{given}', did you mean {option}\\?"):
        LLMOptions.of({given: 1})


def test_a_name_unlike_all_options_has_no_suggestion() -> None:
    assert meant("--qqq", ["--model", "--draft"]) is None


@pytest.mark.parametrize(("argv", "environment", "named"), [
    (["--kv-type", "q3"], {}, "--kv-type"),
    (["--kv-type=q3"], {"SPECINFER_SERVE_KV_TYPE": "auto"}, "--kv-type"),
    ([], {"SPECINFER_SERVE_KV_TYPE": "q3"}, "SPECINFER_SERVE_KV_TYPE"),
])  # fmt: skip
def test_an_error_names_the_flag_or_variable_as_given(
    argv: list[str], environment: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingError) as caught:
        ServeSettings.load("specinfer serve", argv)
    assert ServeSettings.as_given(caught.value, argv).field == named


@pytest.mark.parametrize(
    "settings", [ServeSettings, GatewaySettings, HttpSettings, VerifierSettings, SpeculatorSettings]
)
def test_help_has_each_option_once_in_a_group(
    settings: type[ProcessSettings], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        run_service("a program", settings, ["--log-level", "debug", "--help"], str, asyncio.sleep)
    shown = capsys.readouterr().out
    assert not ended.value.code
    assert "a program [OPTIONS]" in shown
    assert f"{settings.model_config['env_prefix']}LOG_LEVEL" in shown
    flags = [word for line in shown.splitlines() if line.startswith("│ --") for word in line.split()[1:2]]
    assert sorted(flags) == sorted(["--help", *(f"--{n.replace('_', '-')}" for n in settings.model_fields)])
    assert shown.index("─ Process ") > max(shown.index(f"─ {c.group} ") for c in settings.__mro__[:1])


@pytest.mark.parametrize("argument", ["", " "])
def test_an_empty_argument_is_named(argument: str) -> None:
    """A script with an unset variable passes an empty argument."""
    with pytest.raises(SettingError, match="must not have an empty argument"):
        VerifierSettings.load("a program", ["--log-level", "debug", argument])
