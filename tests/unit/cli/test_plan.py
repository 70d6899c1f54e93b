"""`specinfer plan`: what it prints of a model's layouts, and what it refuses."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from specinfer.cli.plan import plan, read_curve
from specinfer.cli.show import output
from specinfer.errors import InvalidInputError, SettingError, UnavailableError
from tests.support.tiny_models import tiny_transformers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a configuration alone."""
    directory = tmp_path_factory.mktemp("plan")
    tiny_transformers("llama", vocab_size=96).config.save_pretrained(directory)
    return directory


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which no column is cut; a console takes its width when it is made."""
    monkeypatch.setattr(output, "width", 200)


def run(*arguments: object) -> str:
    app = typer.Typer()
    app.command()(plan)
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stderr == "", "a plan is a result: it goes to standard output"
    return done.stdout


def test_layouts_with_memory_and_speed(model: Path, tmp_path: Path) -> None:
    curve = tmp_path / "curve.json"
    curve.write_text(json.dumps({"pass_costs": [[64, 0.040], [1, 0.010]]}))
    usual = ("--devices", 2, "--memory", 0.01, "--dtype", "float32", "--nodes", 8, "--batch", 2)
    text = run(model, *usual, "--context", 256, "--curve", curve)
    rows = [line.split() for line in text.splitlines()]
    found = {" ".join(row[:5]): row[5:] for row in rows if row[:1] == ["TP"]}
    assert list(found) == ["TP 1 x PP 1", "TP 2 x PP 1", "TP 1 x PP 2"]
    assert [row[0] for row in found.values()] == ["2", "1", "1"], "verifiers"
    assert [row[3] for row in found.values()] == ["0.4", "0.2", "0.3"], "kB: 3 layers are 2 and 1"
    assert [row[6] for row in found.values()] == ["100.0", "200.0", "100.0"], "tokens/s at best"
    assert found["TP 1 x PP 1"][7:] == ["1.33x", "of", "one", "token"]
    assert "2 x python -m verifier_svc --tensor-parallel 1 --pipeline-parallel 1 --kv-tokens " in text


def test_layouts_as_json(model: Path, tmp_path: Path) -> None:
    curve = tmp_path / "curve.json"
    curve.write_text(json.dumps({"pass_costs": [[64, 0.040], [1, 0.010]]}))
    usual = (model, "--devices", 2, "--memory", 0.01, "--nodes", 8, "--context", 256, "--json")
    rows = json.loads(run(*usual))
    assert [(row["tensor_parallel"], row["pipeline_parallel"], row["verifiers"]) for row in rows] == [
        *((1, 1, 2), (2, 1, 1), (1, 2, 1)),
    ]
    assert all(row["fits"] and row["kv_tokens"] > 256 and "pass_seconds" not in row for row in rows)
    rows = json.loads(run(*usual, "--curve", curve))
    assert [row["pass_seconds"] for row in rows] == [0.01, 0.005, 0.01]


def test_what_cannot_be_planned(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no layout has room for a request of 512 tokens"):
        run(model, "--devices", 1, "--memory", 0.0001)
    with pytest.raises(InvalidInputError, match="--devices = 0"):
        run(model, "--devices", 0, "--memory", 1)
    app = typer.Typer()
    app.command()(plan)
    bad = CliRunner().invoke(app, [str(model), "--devices", "1", "--memory", "1", "--dtype", "int3"])
    assert bad.exit_code == 2
    assert "'int3' is not one of" in bad.stderr
    with pytest.raises(SettingError, match="context = 600: the model has 512 positions"):
        run(model, "--devices", 1, "--memory", 1, "--context", 600)
    for memory in ("0", "nan"):
        with pytest.raises(InvalidInputError, match=f"--memory = {memory}"):
            run(model, "--devices", 1, "--memory", memory)
    with pytest.raises(SettingError, match="--verifier = 'nowhere': must be host:port"):
        run(model, "--devices", 1, "--memory", 1, "--verifier", "nowhere")
    rows = ("", "1", "[1, 0]", "[0, 1]", "[1, NaN]", "[1, -1]")
    for content in ("", "{}", *(f'{{"pass_costs": [{row}]}}' for row in rows)):
        (tmp_path / "curve").write_text(content)
        with pytest.raises(SettingError, match="curve = "):
            read_curve(tmp_path / "curve")
