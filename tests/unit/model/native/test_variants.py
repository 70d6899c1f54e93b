"""Prebuilt libraries give the same bits as a library of the machine's own compiler.

Each is compiled twice, which takes minutes: run only if $SPECINFER_TEST_IMAGES is set (`make test-images`).
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specinfer.model.batch import Segment
from specinfer.model.native.build import KERNELS_VARIABLE, VARIANTS, build_variants, fitting
from specinfer.system.cache_directory import cache_directory
from specinfer.system.machine import processor_flags
from tests.support.tiny_models import runner_of, tiny_transformers

ROOT = Path(__file__).resolve().parents[4]
WITHOUT = {
    "avx512bf16": "",
    "avx512vnni": "-mno-avx512bf16",
    "avx512": "-mno-avx512bf16 -mno-avx512vnni",
    "avx2": "-mno-avx512f",
}
"""Compiler flags that exclude instructions which a variant does not use."""

pytestmark = [
    pytest.mark.native,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not os.environ.get("SPECINFER_TEST_IMAGES"), reason="takes minutes: `make test-images`"
    ),
]


def digest() -> str:
    """Return a hash of the logits of a prompt, a chain and a tree, with weights of every kind."""
    digest_so_far = hashlib.sha256()
    model = tiny_transformers("llama", head_dim=32, hidden_size=96, intermediate_size=160)
    for dtype, weights in (
        ("float32", "f32"),
        ("bfloat16", "bf16"),
        ("bfloat16", "q8_0"),
        ("bfloat16", "q4_1"),
    ):
        runner = runner_of(model, executor="native", dtype=dtype, weights=weights)
        sequence = runner.open()
        for segment in (
            Segment(sequence, list(range(1, 70)), want_last=True),
            Segment(sequence, [5, 6], [7, 8, 9, 10], [-1, 0, 0, 2], want_last=True),
        ):
            for logits in runner.forward([segment]):
                digest_so_far.update(logits.float().contiguous().numpy().tobytes())
    return digest_so_far.hexdigest()


def digest_of(environment: dict[str, str]) -> str:
    """Return the digest from a process with these environment variables."""
    variables = {
        name: text for name, text in os.environ.items() if name not in ("CXXFLAGS", KERNELS_VARIABLE)
    }
    code = "from tests.unit.model.native.test_variants import digest; print(digest())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=variables | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_prebuilt_library_gives_the_bits_of_a_local_build(variant: object) -> None:
    if variant not in (kernels := fitting(processor_flags())):
        pytest.skip("this processor does not run it")
    (chosen,) = (known for known in kernels if known is variant)
    directory = cache_directory() / "native" / "variants" / chosen.name
    build_variants(directory, [chosen])
    shipped = digest_of({KERNELS_VARIABLE: str(directory), "CXX": "/no/such/compiler"})
    assert shipped == digest_of({"CXXFLAGS": WITHOUT[chosen.name]})


def test_rounding_shows_in_the_digest() -> None:
    """Negative control: AVX2 and AVX-512 sum in a different order."""
    if len(fitting(processor_flags())) < len(VARIANTS):
        pytest.skip("this processor does not run all variants")
    assert digest_of({"CXXFLAGS": WITHOUT["avx2"]}) != digest_of({})
