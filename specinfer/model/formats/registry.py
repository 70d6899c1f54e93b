"""Lists all values of `--weights`, with their checks."""

from collections.abc import Callable

from specinfer.errors import SettingError
from specinfer.model.formats.base import BlockFormat, Format, GpuFormat, NumberFormat
from specinfer.model.formats.iq4 import quantise_iq4_nl, quantise_iq4_xs
from specinfer.model.formats.k_quants import (
    quantise_q2_k,
    quantise_q3_k,
    quantise_q4_k,
    quantise_q5_k,
    quantise_q6_k,
)
from specinfer.model.formats.rounding import Bytes, Floats
from specinfer.options.model_options import AUTO


def _simple(type_name: str) -> Callable[[Floats], Bytes]:
    """Return the function by which the `gguf` package quantises to a type."""

    def quantise(x: Floats) -> Bytes:
        import gguf

        rows: Bytes = gguf.quantize(x, gguf.GGMLQuantizationType[type_name])
        return rows

    return quantise


def _block(
    type_name: str, block: int, size: int, quantise: Callable[[Floats], Bytes], use: str, fallback: str = ""
) -> BlockFormat:
    words = f"{8 * size / block:g} bits a weight; {use}"
    return BlockFormat(type_name.lower(), words, type_name, block, size, quantise, fallback)


BLOCK_FORMATS = (
    _block("Q8_0", 32, 34, _simple("Q8_0"), "hardly differs from bfloat16"),
    _block("Q4_0", 32, 18, _simple("Q4_0"), "an old format, for files in it"),
    _block("Q4_1", 32, 20, _simple("Q4_1"), "for rows that fill no blocks of 256"),
    _block("Q5_0", 32, 22, _simple("Q5_0"), "for rows that fill no blocks of 256"),
    _block("Q5_1", 32, 24, _simple("Q5_1"), "for rows that fill no blocks of 256"),
    _block("Q4_K", 256, 144, quantise_q4_k, "the usual choice", "q5_0"),
    _block("Q5_K", 256, 176, quantise_q5_k, "half the error of q4_k", "q5_1"),
    _block("Q6_K", 256, 210, quantise_q6_k, "a quarter of the error of q4_k", "q8_0"),
    _block("Q3_K", 256, 110, quantise_q3_k, "twice the error of q4_k", "q4_0"),
    _block("Q2_K", 256, 84, quantise_q2_k, "the smallest; for drafts", "q4_0"),
    _block("IQ4_NL", 32, 18, quantise_iq4_nl, "better than q4_0 in as many bits"),
    _block("IQ4_XS", 256, 136, quantise_iq4_xs, "almost q4_k in fewer bits", "iq4_nl"),
)
_NUMBERS = (("f32", "float32"), ("f16", "float16"), ("bf16", "bfloat16"))
FORMATS: dict[str, Format] = {
    format_.name: format_
    for format_ in (
        Format(AUTO, "the format of the model's file: the blocks of a GGUF file, --dtype for safetensors"),
        *(NumberFormat(name, f"{dtype}, which --dtype must be, too", dtype) for name, dtype in _NUMBERS),
        *BLOCK_FORMATS,
        GpuFormat("int8", "8 bits a weight, a scale for each row", "q8_0"),
        GpuFormat("fp8", "8 bits a weight in floating point", "q8_0"),
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


def find_format(name: str) -> Format:
    """Return the format of this name."""
    if name in FORMATS:
        return FORMATS[name]
    raise SettingError("weights", name, unknown_format(name))


def unknown_format(name: str) -> str:
    if name in _RENAMED:
        return f"is called {_RENAMED[name]} now"
    return f"must be one of {', '.join(FORMATS)}"


def format_for_rows(chosen: BlockFormat, columns: int) -> BlockFormat | None:
    """Return a format for rows of `columns` weights: `chosen` or its fallback.

    None: neither divides the rows into whole blocks.
    """
    if columns % chosen.block == 0:
        return chosen
    if not chosen.fallback:
        return None
    fallback = FORMATS[chosen.fallback]
    assert isinstance(fallback, BlockFormat)
    return format_for_rows(fallback, columns)
