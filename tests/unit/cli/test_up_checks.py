"""`specinfer up` refuses bad options before it starts anything, with exit code 2 and one line."""

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from specinfer.cli.main import main
from specinfer.drafters import DrafterOptions
from specinfer.drafters.pools import SERVICE_FLAGS
from speculator_svc.settings import SpeculatorSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files of a model, all empty."""
    directory = tmp_path_factory.mktemp("model")
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_text("{}")
    (directory / "model.safetensors").touch()
    return directory


def without(folder: Path, name: str, content: str | None = None) -> str:
    """Return a copy of the model's directory without a file, or with other content of it."""
    other = Path(tempfile.mkdtemp(dir=folder.parent))
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / name).unlink()
    if content is not None:
        (other / name).write_text(content)
    return str(other)


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    """Yield a function that runs the command in this process, without Redis: starting a service would fail."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("COLUMNS", "200")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["specinfer", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, *capsys.readouterr())

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


Run = Callable[..., Done]
BAD = {
    "planner": (["--planner", "oracle"], "'oracle' is not one of measured, learned, nor a file of"),
    "dtype": (["--dtype", "float8"], "'float8' is not one of 'float32', 'bfloat16', 'float16'"),
    "weights": (["--weights", "int3"], "'int3' must be one of auto, f32, f16, bf16, q8_0"),
    "offload": (["--offload", "tape"], "'tape' is not one of 'none', 'host', 'disk'"),
    "drafter": (["--speculator", "oracle"], "speculator = 'oracle': must be one of ssm, eagle"),
    "second drafter": (["--speculator", "ngram+oracle"], "speculator = 'oracle': must be one of ssm, eagle"),
    "flag": (
        ["--speculator", "ngram,beem=4"],
        "--speculator: beem = '4': no flag of drafters; known are dtype, ",
    ),
    "value of a flag": (["--speculator", "ngram,beam=x"], "--speculator: beam = 'x': must be a whole number"),
    "drafter's model": (["--speculator", "ssm,model=/none"], "model = '/none': no such directory"),
    "draft": (["--draft", "oracle"], "draft = 'oracle': no such directory"),
    "service's flag of a draft": (
        ["--draft", "ngram,threads=1"],
        "threads = '1': no flag of drafters; known are dtype, ",
    ),
    "address": (["--speculator-address", "nowhere"], "--speculator-address = 'nowhere': must be host:port"),
    "template": (["--chat-template", "/none"], "'/none' does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_refused(case: str, folder: Path, run: Run) -> None:
    flags, reason = BAD[case]
    done = run("up", "--model", str(folder), "--listen", "127.0.0.1:0", *flags)
    assert reason in done.stderr
    assert done.stderr.startswith("specinfer: error: ")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_folders_that_are_no_models_are_refused(folder: Path, run: Run) -> None:
    for other, reason in (
        (without(folder, "config.json"), "no config.json in"),
        (without(folder, "config.json", "{"), "config.json: Expecting"),
        (without(folder, "config.json", "[]"), "must be a JSON object"),
        (without(folder, "tokenizer.json"), "no tokenizer.json in"),
        (without(folder, "model.safetensors"), "no weights (*.safetensors) in"),
    ):
        done = run("up", "--model", other)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("command", [("generate", "hi"), ("status",), ("status", "--watch")])
def test_without_a_gateway_commands_name_the_one_that_starts_it(run: Run, command: tuple[str, ...]) -> None:
    done = run(*command, "--address", "127.0.0.1:1,127.0.0.1:2")
    assert done.stderr == (
        "specinfer: error: no gateway at 127.0.0.1:1,127.0.0.1:2: start one with `specinfer serve` or `specinfer up`\n"
    )
    assert done.returncode == 1


def test_the_shell_completes_choices(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"COMP_WORDS": "specinfer up --dtype ", "COMP_CWORD": "3"}
    for name, value in {"_SPECINFER_COMPLETE": "complete_bash", **words}.items():
        monkeypatch.setenv(name, value)
    assert run().stdout.split() == ["float32", "bfloat16", "float16"]


def test_flags_of_services_are_those_of_their_settings() -> None:
    known = set(SpeculatorSettings.model_fields) - {field.name for field in fields(DrafterOptions)}
    assert known - {"drafter", "listen"} == SERVICE_FLAGS


def test_options_of_generate_are_in_groups(run: Run) -> None:
    shown = run("generate", "--help").stdout
    groups = ["Arguments", "Options", "Text", "Sampling", "Speculation", "Gateway", "Local system"]
    places = [shown.index(f"─ {group} ─") for group in groups]
    assert places == sorted(places)
    assert places[3] < shown.index("--top-p") < places[4]
