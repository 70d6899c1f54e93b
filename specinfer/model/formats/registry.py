"""Lists all values of `--weights`, with their checks."""

from specinfer.errors import SettingError
from specinfer.model.formats.base import BlockFormat, Format, GpuFormat, NumberFormat
from specinfer.options.model_options import AUTO

_BLOCK_BYTES = {"Q8_0": 34, "Q5_1": 24, "Q5_0": 22, "Q4_1": 20, "Q4_0": 18}
BLOCK_FORMATS = tuple(BlockFormat(name.lower(), name, 32, size) for name, size in _BLOCK_BYTES.items())
"""Formats to which the `gguf` package quantises. Files may have blocks of more types."""
_NUMBERS = (("f32", "float32"), ("f16", "float16"), ("bf16", "bfloat16"))
FORMATS: dict[str, Format] = {
    format_.name: format_
    for format_ in (
        Format(AUTO),
        *(NumberFormat(name, dtype) for name, dtype in _NUMBERS),
        *BLOCK_FORMATS,
        GpuFormat("int8", "q8_0"),
        GpuFormat("fp8", "q8_0"),
    )
}
_RENAMED = {
    "converted": "bf16",
    "native": AUTO,
    "native-a8": AUTO,
    "int4": "q4_1",
    "w8a8": "q8_0",
}
"""Former name of a format -> present name."""
_OF_FILES = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "iq4_nl": "q4_0",
    "iq4_xs": "q4_0",
}
"""Type that only files have -> format of a similar size."""


def find_format(name: str) -> Format:
    if name in FORMATS:
        return FORMATS[name]
    raise SettingError("weights", name, unknown_format(name))


def unknown_format(name: str) -> str:
    if name in _RENAMED:
        return f"is called {_RENAMED[name]} now"
    if name in _OF_FILES:
        return f"is read from GGUF files, not made: use auto with such a file, or {_OF_FILES[name]}"
    return f"must be one of {', '.join(FORMATS)}"
