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


def _services() -> Measure:
    from benchmarks.gpu.services import measure_services

    return measure_services


SECTIONS = (
    Section("check", _check, 60),
    Section("bandwidth", _bandwidth, 10),
    Section("attention", _attention, 120),
    Section("passes", _passes, 140),
    Section("engine", _engine, 40),
    Section("services", _services, 110),
)
