"""Values of options that have only a few: enums, which the shell completes and typer checks."""

from enum import StrEnum


class SpeculationChoice(StrEnum):
    """Speculation of a request."""

    TREE = "tree"
    SEQUENCE = "sequence"
    OFF = "off"


class DecompositionChoice(StrEnum):
    """Decomposition of an answer into points."""

    NONE = "none"
    SKELETON = "skeleton"


class Source(StrEnum):
    """Source of a registered model."""

    AUTO = "auto"
    WHEEL = "wheel"
    HUB = "hub"


class DtypeChoice(StrEnum):
    """Numeric type of a model."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class WeightsChoice(StrEnum):
    """Format in which weights are held."""

    AUTO = "auto"
    CONVERTED = "converted"
    NATIVE = "native"
    NATIVE_A8 = "native-a8"
    INT8 = "int8"
    INT4 = "int4"
    W8A8 = "w8a8"
    FP8 = "fp8"


class OffloadChoice(StrEnum):
    """Place of the layers of a model that is larger than the device."""

    NONE = "none"
    HOST = "host"
    DISK = "disk"


class PlannerChoice(StrEnum):
    """Expectation of accepted tokens."""

    MEASURED = "measured"
    LEARNED = "learned"
