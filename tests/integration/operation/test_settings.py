"""A bad setting or flag gives one line with name and value, and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

from specinfer import __version__
from specinfer.cli.local.processes import free_ports
from specinfer.model.formats.registry import FORMATS
from specinfer.options.model_options import DTYPES, EXECUTORS
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


def ends_with_one_line(done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


BAD_SETTINGS = """
verifier_svc --dtype float8                         --dtype = 'float8': must be one of float32
verifier_svc --model /no/such/model                 --model = '/no/such/model': no such directory
verifier_svc --max-nodes 0                          --max-nodes = '0'
verifier_svc --unheard-of 1                         --unheard-of
verifier_svc --threads 100000                       --threads = 100000: must be 1 to
verifier_svc --weights w8a8                         --weights = 'w8a8': is called q8_0 now
verifier_svc --device abacus                        --device = 'abacus':
speculator_svc --drafter crystal                    --drafter = 'crystal': must be one of ssm, eagle, medusa
gateway --planner oracle                            --planner = 'oracle': must be measured, learned or a file
gateway --log-level loud                            --log-level = 'loud'
gateway --verifiers a:1,b                           --verifiers = 'b': must be host:port
gateway --speculators b                             --speculators = 'b': must be host:port
all_in_one --kv-tokens x                            --kv-tokens = 'x': Input should be a valid integer
all_in_one --threads 100000 --model tests/data      --threads = 100000: must be 1 to
http_svc --gateways a:70000                         --gateways = 'a:70000': must be host:port
"""
"""A service and its flags, and the beginning of the error."""
SETTINGS = [tuple(line.split("  ", 1)) for line in BAD_SETTINGS.strip().splitlines()]


@pytest.mark.parametrize(("command", "message"), SETTINGS)
def test_bad_settings(command: str, message: str) -> None:
    ends_with_one_line(run(*command.split()), 2, message.strip())


def test_a_bad_setting_in_a_process_that_imports_by_itself() -> None:
    for command, message in {
        command.split()[0]: (command, message) for command, message in SETTINGS
    }.values():
        ends_with_one_line(run_by_python(*command.split()), 2, message.strip())


def test_unknown_environment_variable() -> None:
    done = run("gateway", SPECINFER_GATEWAY_TREE_NODE="3")
    assert done.returncode == 2
    assert "SPECINFER_GATEWAY_TREE_NODE = '3': unknown setting" in done.stderr


def test_environment_variables_are_read() -> None:
    done = run("speculator_svc", SPECINFER_SPECULATOR_DRAFTER="crystal")
    assert "SPECINFER_SPECULATOR_DRAFTER = 'crystal'" in done.stderr


CLI = "specinfer.cli"
BENCH = "bench --prompts tests/data/prompts.jsonl"
BAD_COMMANDS = f"""
generate hi --temperature warm                      'warm'
generate hi --seed -4                               seed = -4
generate                                            PROMPT = None: required
generate hi --prompt-file x                         --prompt-file = 'x': cannot be used with a prompt as argument
generate --prompt-file /no/such                     --prompt-file = '/no/such': cannot be read: No such file
generate --prompt-file /dev/null                    --prompt-file = '/dev/null': must not be empty
generate -                                          PROMPT = 'standard input': must not be empty
generate hi --model x                               --model = 'x': needs --local
generate hi --local --address x:1                   --address = 'x:1': cannot be used with --local
generate hi --local --model /no/such                --model = '/no/such'
generate hi --local --tls-ca x                      --tls-ca = 'x': cannot be used with --local
generate hi --tls-ca /no/such                       --tls-ca = '/no/such': cannot be read: No such file
bench --prompts /no/such.jsonl                      prompts = '/no/such.jsonl'
bench --prompts Makefile                            must be JSON with `turns: [text]`
bench --prompts x --tls-ca x                        --tls-ca = 'x': needs --address
bench --prompts x --address x:1 --weights q8_0      --weights = 'q8_0': cannot be used with --address
bench --prompts x --address x:1 --speculator ngram  --speculator = ['ngram']: cannot be used with --address
{BENCH} --modes fast                                modes = 'fast'
{BENCH} --modes tree,tree                           --modes = 'tree,tree': must name each mode once
{BENCH} --batch 0                                   batch = '0'
{BENCH} --json Makefile/x --address x:1             --json = 'Makefile/x':
models pull /no/such.gguf                           MODEL = '/no/such.gguf': no such file
models pull gpt-9                                   MODEL = 'gpt-9': not in the registry
up --kv-tokens many                                 --kv-tokens = 'many': must be a whole number or 'auto'
up --http-listen none --cors-origins x              --cors-origins = 'x': needs --http-listen HOST:PORT, not none
run m --kv-tokens 3                                 --kv-tokens = 3: must be at least 16
run m --address x:1 --threads 1                     --threads = 1: cannot be used with --address
sing                                                sing
status --address localhost                          address = 'localhost': must be host:port
status --tls-cert x.pem                             --tls-ca = None: required
attach r --from-token -1                            --from-token = -1: must be in [0, 2**32)
cancel r --address a:1,                             address = 'a:1,': must be host:port
"""
COMMANDS: list[tuple[list[str | bytes], str]] = [
    *(
        (line.split("  ", 1)[0].split(), line.split("  ", 1)[1].strip())
        for line in BAD_COMMANDS.strip().splitlines()
    ),
    (["generate", b"\xff\xfe"], "not UTF-8 at character 1"),
    (["generate", "hi", "--stop", b"\xff"], "stop = '\\udcff': not UTF-8"),
]


@pytest.mark.parametrize(("arguments", "message"), COMMANDS, ids=[message for _, message in COMMANDS])
def test_bad_commands(arguments: list[str | bytes], message: str) -> None:
    ends_with_one_line(run(CLI, *arguments), 2, message)


def test_a_bad_command_in_a_process_that_imports_by_itself() -> None:
    arguments, message = COMMANDS[0]
    ends_with_one_line(run_by_python(CLI, *arguments), 2, message)


@pytest.mark.parametrize("module", ["gateway", "http_svc", "verifier_svc", "speculator_svc", CLI])
def test_help(module: str) -> None:
    done = run(module, "--help")
    assert done.returncode == 0
    assert "--" in done.stdout


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
        (["specinfer.training", "ssm"], ["numbers from 0, such as 0,29"]),
        *(([CLI, name], [*FORMATS, *DTYPES, "cpu", "cuda"]) for name in ("up", "generate", "bench")),
    ],
)
def test_help_lists_the_values(command: list[str], values: list[str]) -> None:
    text = help_of(*command)
    assert [value for value in values if value not in text] == []


@pytest.mark.parametrize("command", [[CLI, "bench"], ["specinfer.training", "corpus"]])
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
