"""The parts of the report, in their order; each is imported when its turn comes."""

from benchmarks.gpu.section import Measure, Section


def _check() -> Measure:
    from benchmarks.gpu.check import check_kernels

    return check_kernels


def _bandwidth() -> Measure:
    from benchmarks.gpu.attention import measure_bandwidth

    return measure_bandwidth


def _attention() -> Measure:
    from benchmarks.gpu.attention import measure_attention

    return measure_attention


def _passes() -> Measure:
    from benchmarks.gpu.passes import measure_passes

    return measure_passes


def _engine() -> Measure:
    from benchmarks.gpu.engine import measure_engine

    return measure_engine


def _drafting() -> Measure:
    from benchmarks.gpu.engine import measure_drafting

    return measure_drafting


def _tensor_parallel() -> Measure:
    from benchmarks.gpu.services import measure_tensor_parallel

    return measure_tensor_parallel


def _services() -> Measure:
    from benchmarks.gpu.services import measure_services

    return measure_services


SECTIONS = (
    Section("check", _check, 60),
    Section("bandwidth", _bandwidth, 10),
    Section("attention", _attention, 110),
    Section("passes", _passes, 130),
    Section("engine", _engine, 40),
    Section("drafting", _drafting, 20),
    Section("services", _services, 110),
    Section("tensor parallel", _tensor_parallel, 90, devices=2),
)
