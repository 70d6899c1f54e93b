"""The fingerprints of a verifier change with everything that may change the text."""

import json
from pathlib import Path

import pytest

from specinfer.text.tokenizer import Tokenizer
from specinfer.v1 import speculator_pb2
from specinfer.verification.engine import VerifierEngine
from tests.support.models.saved_model import save_target
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import runner_of, tiny_transformers
from verifier_svc.app import describe
from verifier_svc.identity import Identity
from verifier_svc.settings import VerifierSettings


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_target(tmp_path)


def of(directory: Path, *blocks: str, **fields: object) -> Identity:
    settings = VerifierSettings(model=str(directory), **fields)
    return Identity.of(settings, directory, Tokenizer.load(directory), blocks)


def test_processes_differ_and_their_model_does_not(directory: Path) -> None:
    one, two = of(directory), of(directory, kv_tokens=64, acceptance="naive")
    assert one.instance_id != two.instance_id
    assert one.model_fingerprint == two.model_fingerprint


def test_settings_that_change_the_text_change_the_fingerprint(directory: Path) -> None:
    options = (
        {},
        {"dtype": "float32"},
        {"kv_window": 64},
        {"kv_window": 96},
        {"kv_type": "q8_0"},
    )
    identities = [of(directory, **fields) for fields in options]
    identities.append(of(directory, "Q4_K", "Q6_K"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    identities.append(of(directory))
    tiny_transformers("llama", seed=1).save_pretrained(directory)
    identities.append(of(directory))
    assert len({identity.model_fingerprint for identity in identities}) == 8
    assert len({identity.text_fingerprint for identity in identities}) == 2
    assert {identity.tokenizer_fingerprint for identity in identities} == {ascii_tokenizer().fingerprint()}


def test_describe_returns_it(directory: Path) -> None:
    identity = of(directory)
    engine = VerifierEngine(runner_of(tiny_transformers("llama")))
    resident = speculator_pb2.DescribeSpeculatorReply()
    reply = describe(VerifierSettings(), engine, identity, [(1, 0.001)], 2e-9, resident)
    assert reply.context_nanoseconds == 2
    assert (reply.instance_id, reply.model_fingerprint) == (identity.instance_id, identity.model_fingerprint)
    assert reply.text_fingerprint == identity.text_fingerprint
    assert reply.tokenizer_fingerprint == identity.tokenizer_fingerprint
