"""A bad setting or flag gives one line with name and value, and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

from specinfer import __version__
from specinfer.cli.local.processes import free_ports
from specinfer.model.backends import EXECUTORS
from specinfer.model.formats.registry import FORMATS
from specinfer.model.options import DTYPES
from tests.support.preloaded import ROOT
from tests.support.preloaded import run_preloaded as run


def run_by_python(*command: str | bytes) -> subprocess.CompletedProcess[str]:
    """Run a command by `python -m`; other tests use preloaded imports, which saves seconds."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )


BAD_SETTINGS = [
    (["verifier_svc", "--dtype", "float8"], "--dtype = 'float8': must be one of float32"),
    (["verifier_svc", "--model", "/no/such/model"], "--model = '/no/such/model': no such directory"),
    (["verifier_svc", "--acceptance", "hope"], "--acceptance = 'hope': must be one of greedy"),
    (["verifier_svc", "--max-nodes", "0"], "--max-nodes = '0'"),
    (["verifier_svc", "--unheard-of", "1"], "--unheard-of"),
    (["speculator_svc", "--drafter", "crystal"], "--drafter = 'crystal': must be one of ssm, eagle, medusa"),
    (["gateway", "--tree-nodes", "many"], "--tree-nodes = 'many'"),
    (
        ["gateway", "--planner", "oracle"],
        "--planner = 'oracle': must be measured, learned or a file of weights",
    ),
    (["gateway", "--log-level", "loud"], "--log-level = 'loud'"),
    (["verifier_svc", "--threads", "100000"], "--threads = 100000: must be 1 to "),
    (["verifier_svc", "--threads", "-1"], "--threads = '-1'"),
    (
        ["all_in_one", "--kv-tokens", "x"],
        "--kv-tokens = 'x': Input should be a valid integer, unable to parse",
    ),
    (["all_in_one", "--threads", "100000", "--model", "tests/data"], "--threads = 100000: must be 1 to "),
    (["verifier_svc", "--weights", "w8a8"], "--weights = 'w8a8': is called q8_0 now"),
    (["verifier_svc", "--device", "abacus"], "--device = 'abacus': "),
    (["verifier_svc", "--listen", "52"], "--listen = '52': must be host:port with a port from 0 to 65535"),
    (["gateway", "--verifiers", "a:1,b"], "--verifiers = 'b': must be host:port"),
    (["gateway", "--verifiers", ","], "--verifiers = ',': must be host:port"),
    (["gateway", "--speculators", "b"], "--speculators = 'b': must be host:port"),
    (["http_svc", "--gateways", "a:70000"], "--gateways = 'a:70000': must be host:port"),
]


@pytest.mark.parametrize(("command", "message"), BAD_SETTINGS, ids=[m[:30] for _, m in BAD_SETTINGS])
def test_bad_settings(command: list[str], message: str) -> None:
    ends_with_one_line(run(*command), 2, message)


ONE_OF_EACH = list({command[0]: (command, message) for command, message in BAD_SETTINGS}.values())


@pytest.mark.parametrize(("command", "message"), ONE_OF_EACH, ids=[command[0] for command, _ in ONE_OF_EACH])
def test_a_bad_setting_of_each_service_in_a_process_that_imports_by_itself(
    command: list[str], message: str
) -> None:
    ends_with_one_line(run_by_python(*command), 2, message)


def ends_with_one_line(done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_unknown_environment_variable() -> None:
    done = run("gateway", SPECINFER_GATEWAY_TREE_NODE="3")
    assert done.returncode == 2
    assert "SPECINFER_GATEWAY_TREE_NODE = '3': unknown setting" in done.stderr


def test_environment_variables_are_read() -> None:
    done = run("speculator_svc", SPECINFER_SPECULATOR_DRAFTER="crystal")
    assert "SPECINFER_SPECULATOR_DRAFTER = 'crystal'" in done.stderr


CLI = "specinfer.cli"
BAD_COMMANDS = [
    (["generate", "hi", "--temperature", "warm"], 2, "'warm'"),
    (["generate", "hi", "--speculation", "yes"], 2, "'yes'"),
    (["generate", "hi", "--seed", "-4"], 2, "seed = -4"),
    (["generate"], 2, "PROMPT = None: required"),
    (
        ["generate", "hi", "--prompt-file", "x"],
        2,
        "--prompt-file = 'x': cannot be used with a prompt as argument",
    ),
    (
        ["generate", "--prompt-file", "/no/such"],
        2,
        "--prompt-file = '/no/such': cannot be read: No such file",
    ),
    (["generate", "--prompt-file", "/dev/null"], 2, "--prompt-file = '/dev/null': must not be empty"),
    (["generate", "-"], 2, "PROMPT = 'standard input': must not be empty"),
    (["generate", b"\xff\xfe"], 2, "not UTF-8 at character 1"),
    (["generate", "hi", "--stop", b"\xff"], 2, "stop = '\\udcff': not UTF-8"),
    (["generate", "hi", "--model", "x"], 2, "--model = 'x': needs --local"),
    (["generate", "hi", "--weights", "q8_0"], 2, "--weights = 'q8_0': needs --local"),
    (["generate", "hi", "--local", "--address", "x:1"], 2, "--address = 'x:1': cannot be used with --local"),
    (["generate", "hi", "--local", "--model", "/no/such"], 2, "--model = '/no/such'"),
    (["bench", "--prompts", "/no/such.jsonl"], 2, "prompts = '/no/such.jsonl'"),
    (["bench", "--prompts", "Makefile"], 2, "must be JSON with `turns: [text]`"),
    (["bench", "--prompts", "tests/data/prompts.jsonl", "--modes", "fast"], 2, "modes = 'fast'"),
    (
        ["bench", "--prompts", "tests/data/prompts.jsonl", "--modes", "tree,tree"],
        2,
        "--modes = 'tree,tree': must name each mode once",
    ),
    (["bench", "--prompts", "tests/data/prompts.jsonl", "--batch", "0"], 2, "batch = '0'"),
    (["bench", "--prompts", "tests/data/prompts.jsonl", "--limit", "0"], 2, "limit = 0"),
    *(
        (
            ["bench", "--prompts", "x", "--address", "x:1", flag, value],
            2,
            f"{flag} = '{value}': cannot be used with --address",
        )
        for flag, value in (
            ("--model", "y"),
            ("--dtype", "float32"),
            ("--weights", "q8_0"),
            ("--device", "y"),
        )
    ),
    (
        ["bench", "--prompts", "x", "--speculator", "ngram", "--address", "x:1"],
        2,
        "--speculator = ['ngram']: cannot be used with --address",
    ),
    (
        ["bench", "--prompts", "tests/data/prompts.jsonl", "--json", "Makefile/x", "--address", "x:1"],
        2,
        "--json = 'Makefile/x': ",
    ),
    (["bench", "--prompts", "tests/data/prompts.jsonl", "--max-new-tokens", "0"], 2, "(got '0')"),
    (["models", "pull", "/no/such.gguf"], 2, "MODEL = '/no/such.gguf': no such file"),
    (["models", "pull", "gpt-9"], 2, "MODEL = 'gpt-9': not in the registry"),
    (["sing"], 2, "sing"),
    (["status", "--address", "127.0.0.1:9"], 1, "gateway at 127.0.0.1:9"),
    (["status", "--address", "localhost"], 2, "address = 'localhost': must be host:port"),
    (["generate", "hi", "--address", "127.0.0.1:99999"], 2, "address = '127.0.0.1:99999': must be host:port"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD_COMMANDS, ids=[m for *_, m in BAD_COMMANDS])
def test_bad_commands(arguments: list[str | bytes], code: int, message: str) -> None:
    ends_with_one_line(run(CLI, *arguments), code, message)


def test_a_bad_command_in_a_process_that_imports_by_itself() -> None:
    arguments, code, message = BAD_COMMANDS[0]
    ends_with_one_line(run_by_python(CLI, *arguments), code, message)


@pytest.mark.parametrize("module", ["gateway", "http_svc", "verifier_svc", "speculator_svc", CLI])
def test_help(module: str) -> None:
    done = run(module, "--help")
    assert done.returncode == 0
    assert "--" in done.stdout


def test_models_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache is empty, as pulled models are listed otherwise."""
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    done = run(CLI, "models", "list")
    assert any(line.startswith("smollm2-135m\t") for line in done.stdout.splitlines())
    assert "Apache-2.0" in done.stdout


def help_of(*command: str) -> str:
    """Return the output of `--help` on a wide terminal, without frames."""
    done = run(*command, "--help", COLUMNS="400", NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "values"),
    [
        (["verifier_svc"], [*EXECUTORS, *FORMATS, *DTYPES]),
        (["speculator_svc"], [*FORMATS, *DTYPES, "1,1,3,1"]),
        (["speculator_svc.training", "ssm"], ["numbers from 0, such as 0,29"]),
        *(([CLI, name], [*FORMATS, *DTYPES, "cpu", "cuda"]) for name in ("up", "generate", "bench")),
    ],
)
def test_help_lists_the_values(command: list[str], values: list[str]) -> None:
    text = help_of(*command)
    assert [value for value in values if value not in text] == []


@pytest.mark.parametrize("command", [[CLI, "bench"], ["speculator_svc.training", "corpus"]])
def test_help_shows_brackets(command: list[str]) -> None:
    assert "`turns: [text]`" in help_of(*command)


def test_help_explains_the_flags_of_speculators() -> None:
    assert "DRAFTER[+DRAFTER...][,FLAG=VALUE...]" in help_of(CLI, "up")


def test_help_names_the_cache_directory() -> None:
    text = help_of(CLI)
    assert "$SPECINFER_CACHE" in text
    assert "$XDG_CACHE_HOME" in text


def test_version() -> None:
    done = run(CLI, "--version")
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


def test_a_redis_url_that_is_none_is_one_line(default_model: Path) -> None:
    for command, environment in (
        (["gateway", "--redis-url", "mysql://:secret@here"], {}),
        ([CLI, "up", "--listen", f"127.0.0.1:{free_ports(1)[0]}"], {"REDIS_URL": "mysql://:secret@here"}),
    ):
        ends_with_one_line(run(*command, **environment), 2, "= 'mysql://***@here': ")


def test_up_without_the_redis_of_redis_url_ends_at_once(default_model: Path) -> None:
    port, redis = free_ports(2)
    done = run(CLI, "up", "--listen", f"127.0.0.1:{port}", REDIS_URL=f"redis://127.0.0.1:{redis}/0")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"specinfer: error: REDIS_URL = 'redis://127.0.0.1:{redis}/0': no Redis there"
    )
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:0", "127.0.0.1:http", "no.such.host.invalid:5"])
def test_up_refuses_bad_addresses(listen: str, default_model: Path) -> None:
    ends_with_one_line(run(CLI, "up", "--listen", listen), 2, f"listen = {listen!r}: ")


def test_a_command_without_anything_is_help() -> None:
    done = run(CLI)
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage" in done.stdout
