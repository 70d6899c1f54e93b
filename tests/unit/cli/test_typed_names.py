"""Errors of a command name its options and arguments as its user types them."""

import sys

import pytest

from specinfer.cli.main import app, main
from specinfer.options.usage import as_typed


@pytest.mark.parametrize(
    ("argv", "error", "shown"),
    [
        (["up"], "http_listen = 'a:80': taken", "--http-listen = 'a:80': taken"),
        (["bench", "--json", "f"], "json_path = 'f': is a folder", "--json = 'f': is a folder"),
        (["up"], "speculator: model = 'x': not pulled", "--speculator: model = 'x': not pulled"),
        (["generate", "up"], "prompt = None: required", "PROMPT = None: required"),
        (["models", "pull", "x"], "model = 'x': not known", "MODEL = 'x': not known"),
        (["generate"], "http_listen = 'a:80': taken", "http_listen = 'a:80': taken"),
        (["generate"], "no gateway at a:80", "no gateway at a:80"),
    ],
)
def test_a_field_is_named_as_the_command_has_it(argv: list[str], error: str, shown: str) -> None:
    assert as_typed(error, app, argv) == shown


def test_the_command_line_names_an_unusable_address_by_its_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["specinfer", "up", "--served-model-name", "x", "--http-listen", "none"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "specinfer: error: --served-model-name = 'x': needs --http-listen HOST:PORT, not none\n"
    )
