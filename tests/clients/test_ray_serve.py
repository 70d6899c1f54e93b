"""`examples/ray_serve.py` in a real Ray Serve gives the texts of `LLM`."""

import json
import os
import sys
import sysconfig
from pathlib import Path

import pytest

from specinfer import LLM, SamplingParams
from specinfer.cli.local.processes import free_ports
from tests.chaos.model_directory import write_model
from tests.clients.environments import environment
from tests.clients.test_clients import PROGRAMS, ROOT, output_of


@pytest.mark.slow
async def test_a_deployment_gives_the_texts_of_llm(tmp_path: Path) -> None:
    programs = environment("ray", "ray[serve]==2.60.0")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Ray's own packages go before ours, which are the model's
    ours = programs.parent / "lib" / version / "site-packages" / "ours.pth"
    ours.write_text(sysconfig.get_path("purelib") + "\n")
    model = write_model(tmp_path / "tiny")
    (port,) = free_ports(1)
    printed = await output_of(
        *(programs / "python", PROGRAMS / "with_ray_serve.py", model, port),
        PATH=os.environ["PATH"],
        HOME=str(tmp_path),
        PYTHONPATH=str(ROOT),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="120",
    )
    params = SamplingParams(temperature=0, max_tokens=16)
    with LLM(str(model)) as llm:
        expected = [output.outputs[0].text for output in llm.generate(["2 + 2", "an owl"], params)]
    assert json.loads(printed.splitlines()[-1]) == expected
    assert all(expected)
