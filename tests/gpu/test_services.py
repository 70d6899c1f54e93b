"""Services on a real device: `up` with a speculator service and a resident draft, and `serve`."""

from collections.abc import Callable, Iterator

import pytest

from benchmarks.gpu.run import TINY, GpuContext
from benchmarks.gpu.services import serve, up
from benchmarks.gpu.timers import GpuTimer
from tests.unit.benchmarks.test_gpu import assert_answers_of_plain_decoding

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("part", [up, serve])
@pytest.mark.parametrize("executor", ["gpu", "auto"])
def test_answers_on_the_device_are_those_of_plain_decoding(
    part: Callable[[GpuContext], Iterator[str]], executor: str
) -> None:
    """Over gRPC and HTTP, plainly, with sequences and with trees; `up` also after a loss of the verifier."""
    assert_answers_of_plain_decoding(part, GpuContext("cuda", GpuTimer(), TINY, 600, executor))
