"""Reference products of GGUF blocks with activations of eight bits: exact integer sums per block.

A block of weights becomes integers: `codes` with a scale and a minimum per group, and two float factors.
Activations become signed bytes as in llama.cpp (Q8_0, Q8_K). All floating-point operations are in float64, so kernels
may differ only by the rounding of their float32 sums.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]
Doubles = NDArray[np.float64]

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
EXPONENTS = (104, 140)
"""First and last exponent of MXFP4 whose half is representable in float16."""
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
"""Types with blocks of 256 weights, multiplied by activations in Q8_K; all others by activations in Q8_0."""


class IntegerBlocks(NamedTuple):
    """Blocks [..., B]; weight i in group g is `scale * scales[g] * codes[i] + offset * minimums[g]`."""

    codes: Integers
    """[..., weights]."""
    scales: Integers
    """[..., groups]; all groups have the same size."""
    minimums: Integers
    """[..., groups]."""
    scale: Doubles
    """[...]."""
    offset: Doubles
    """[...]."""

    def values(self) -> Doubles:
        length = self.codes.shape[-1] // self.scales.shape[-1]
        scales, minimums = (np.repeat(part, length, -1) for part in (self.scales, self.minimums))
        return self.scale[..., None] * (scales * self.codes) + self.offset[..., None] * minimums


def product(type_name: str, rows: Bytes, x: NDArray[np.float32]) -> Doubles:
    """Return the products [R, N] of activations x [R, K] with the rows of a matrix [N, bytes]."""
    if type_name in ("F16", "BF16", "F32"):
        raise ValueError(f"{type_name} has no blocks")
    blocks = integer_blocks(type_name, rows)
    quantise = quantise_q8_k if type_name in K_QUANTS else quantise_q8_0
    numbers, scales = quantise(x)
    return np.stack([_row(blocks, a, d) for a, d in zip(numbers, scales, strict=True)])


def _row(blocks: IntegerBlocks, numbers: Integers, scales: Doubles) -> Doubles:
    """Return the products [N] of one row of activations: [blocks, weights] and their scales [blocks]."""
    groups = blocks.scales.shape[-1]
    shape = (*blocks.codes.shape[:-1], groups, -1)
    activations = numbers.reshape(len(numbers), groups, -1)
    sums = (blocks.codes.reshape(shape) * activations).sum(-1)
    main = (blocks.scales * sums).sum(-1)
    least = (blocks.minimums * activations.sum(-1)).sum(-1)
    return (scales * (blocks.scale * main + blocks.offset * least)).sum(-1)


def quantise_q8_0(x: NDArray[np.float32]) -> tuple[Integers, Doubles]:
    """Return bytes [R, K / 32, 32] and scales [R, K / 32] in float32, not rounded to float16."""
    groups = x.astype(np.float32).reshape(len(x), -1, 32)
    top = np.abs(groups).max(-1)
    inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
    numbers = np.rint(groups * inverse[..., None]).astype(np.int64)  # to the nearest, ties to even
    return numbers, (top / np.float32(127)).astype(np.float64)


def quantise_q8_k(x: NDArray[np.float32]) -> tuple[Integers, Doubles]:
    """Return bytes [R, K / 256, 256] and scales [R, K / 256]; a block's largest magnitude becomes -127."""
    blocks = x.astype(np.float32).reshape(len(x), -1, 256)
    place = np.abs(blocks).argmax(-1)
    largest = np.take_along_axis(blocks, place[..., None], -1)[..., 0]
    there = largest != 0
    inverse = np.divide(np.float32(-127), largest, out=np.zeros_like(largest), where=there)
    numbers = np.minimum(np.rint(blocks * inverse[..., None]), 127).astype(np.int64)
    scales = np.divide(np.float32(1), inverse, out=np.zeros_like(largest), where=there)
    return numbers, scales.astype(np.float64)


def integer_blocks(type_name: str, rows: Bytes) -> IntegerBlocks:
    size, read = _READERS[type_name]
    return read(rows.reshape(len(rows), -1, size))


def _half(blocks: Bytes, at: int) -> Doubles:
    two = np.ascontiguousarray(blocks[..., at : at + 2])
    return two.view(np.float16)[..., 0].astype(np.float64)


def _whole(blocks: Bytes, start: int, stop: int) -> Integers:
    return blocks[..., start:stop].astype(np.int64)


def _signed(blocks: Bytes, start: int, stop: int) -> Integers:
    return np.ascontiguousarray(blocks[..., start:stop]).view(np.int8).astype(np.int64)


def _nibbles(packed: Integers) -> Integers:
    """Return the low nibbles of bytes [..., B], then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _fifth_bits(blocks: Bytes, at: int) -> Integers:
    """Return 16 times each of the 32 bits of the little-endian word at byte `at`."""
    return np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little").astype(np.int64) << 4


def _simple(codes: Integers, scale: Doubles, minimum: Doubles | None = None) -> IntegerBlocks:
    one = np.ones((*codes.shape[:-1], 1), np.int64)
    if minimum is None:
        return IntegerBlocks(codes, one, 0 * one, scale, np.zeros_like(scale))
    return IntegerBlocks(codes, one, one, scale, minimum)


def _q4_0(b: Bytes) -> IntegerBlocks:
    return _simple(_nibbles(_whole(b, 2, 18)) - 8, _half(b, 0))


def _q4_1(b: Bytes) -> IntegerBlocks:
    return _simple(_nibbles(_whole(b, 4, 20)), _half(b, 0), _half(b, 2))


def _q5_0(b: Bytes) -> IntegerBlocks:
    return _simple((_nibbles(_whole(b, 6, 22)) | _fifth_bits(b, 2)) - 16, _half(b, 0))


def _q5_1(b: Bytes) -> IntegerBlocks:
    return _simple(_nibbles(_whole(b, 8, 24)) | _fifth_bits(b, 4), _half(b, 0), _half(b, 2))


def _q8_0(b: Bytes) -> IntegerBlocks:
    return _simple(_signed(b, 2, 34), _half(b, 0))


def _iq4_nl(b: Bytes) -> IntegerBlocks:
    return _simple(IQ4_VALUES[_nibbles(_whole(b, 2, 18))], _half(b, 0))


def _mxfp4(b: Bytes) -> IntegerBlocks:
    scale = 2.0 ** (b[..., 0].astype(np.float64) - 128)
    return _simple(FP4_VALUES[_nibbles(_whole(b, 1, 17))], scale)


def _six_bits(b: Bytes) -> tuple[Integers, Integers]:
    """Return the eight scales and eight minimums of Q4_K and Q5_K, packed in bytes 4 to 15."""
    first, second, third = (_whole(b, at, at + 4) for at in (4, 8, 12))
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    return scales, minimums


def _chunked(b: Bytes, start: int) -> Integers:
    """Return 256 nibbles: for each 32 bytes, the low nibbles, then the high ones."""
    packed = _whole(b, start, start + 128).reshape(*b.shape[:-1], 4, 32)
    return _nibbles(packed).reshape(*b.shape[:-1], 256)


def _q4_k(b: Bytes) -> IntegerBlocks:
    return IntegerBlocks(_chunked(b, 16), *_six_bits(b), _half(b, 0), -_half(b, 2))


def _q5_k(b: Bytes) -> IntegerBlocks:
    high = np.unpackbits(b[..., 16:48, None], axis=-1, bitorder="little").astype(np.int64)
    high = high.swapaxes(-1, -2).reshape(*b.shape[:-1], 256)  # bit j of byte l: weight 32 j + l
    return IntegerBlocks(_chunked(b, 48) | high << 4, *_six_bits(b), _half(b, 0), -_half(b, 2))


def _q6_k(b: Bytes) -> IntegerBlocks:
    lead = b.shape[:-1]
    low = _whole(b, 0, 128).reshape(*lead, 2, 64)
    high = _whole(b, 128, 192).reshape(*lead, 2, 1, 32) >> np.array([[0], [2], [4], [6]]) & 3
    codes = _nibbles(low) | high.reshape(*lead, 2, 128) << 4
    scales = _signed(b, 192, 208)
    factor = _half(b, 208)
    return IntegerBlocks(codes.reshape(*lead, 256) - 32, scales, 0 * scales, factor, 0 * factor)


def _two_bits(b: Bytes, start: int) -> Integers:
    """Return 256 codes of two bits: for each 32 bytes, the lowest pairs first."""
    packed = _whole(b, start, start + 64).reshape(*b.shape[:-1], 2, 1, 32)
    return (packed >> np.array([[0], [2], [4], [6]]) & 3).reshape(*b.shape[:-1], 256)


def _q3_k(b: Bytes) -> IntegerBlocks:
    lead = b.shape[:-1]
    mask = np.unpackbits(b[..., :32, None], axis=-1, bitorder="little").astype(np.int64)
    high = mask.swapaxes(-1, -2).reshape(*lead, 256)
    low, top = _whole(b, 96, 104), _whole(b, 104, 108)
    twos = (top[..., None, :] >> np.array([[0], [2], [4], [6]]) & 3).reshape(*lead, 16)
    scales = (_nibbles(low) | twos << 4) - 32
    factor = _half(b, 108)
    return IntegerBlocks(_two_bits(b, 32) + 4 * high - 4, scales, 0 * scales, factor, 0 * factor)


def _q2_k(b: Bytes) -> IntegerBlocks:
    packed = _whole(b, 0, 16)
    return IntegerBlocks(_two_bits(b, 16), packed & 15, packed >> 4, _half(b, 80), -_half(b, 82))


def _iq4_xs(b: Bytes) -> IntegerBlocks:
    low = _whole(b, 4, 8)
    ones = np.stack([low & 15, low >> 4], -1).reshape(*b.shape[:-1], 8)
    high = _whole(b, 2, 3) | _whole(b, 3, 4) << 8
    scales = (ones | (high >> np.arange(0, 16, 2) & 3) << 4) - 32
    packed = _whole(b, 8, 136).reshape(*b.shape[:-1], 8, 16)
    codes = IQ4_VALUES[_nibbles(packed).reshape(*b.shape[:-1], 256)]
    factor = _half(b, 0)
    return IntegerBlocks(codes, scales, 0 * scales, factor, 0 * factor)


_READERS: dict[str, tuple[int, Callable[[Bytes], IntegerBlocks]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "IQ4_NL": (18, _iq4_nl),
    "MXFP4": (17, _mxfp4),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "IQ4_XS": (136, _iq4_xs),
}
BLOCK_BYTES = {name: size for name, (size, _) in _READERS.items()}
"""Bytes of a block by GGUF type."""


def random_rows(type_name: str, rows: int, k: int, seed: int = 0) -> Bytes:
    """Return random valid rows [N, bytes]: any codes, float16 factors of ordinary size."""
    random = np.random.default_rng(seed)
    size = BLOCK_BYTES[type_name]
    weights = 256 if type_name in K_QUANTS else 32
    blocks = random.integers(0, 256, (rows, k // weights, size), np.uint8)
    if type_name == "MXFP4":
        blocks[..., 0] = random.integers(118, 124, blocks.shape[:-1])
    for at in factors_at(type_name):
        factors = random.uniform(0.001, 0.02, (rows, k // weights, 1)).astype(np.float16)
        blocks[..., at : at + 2] = factors.view(np.uint8)
    return blocks.reshape(rows, -1)


def factors_at(type_name: str) -> tuple[int, ...]:
    """Return the byte offsets of a block's float16 factors."""
    return _FACTORS_AT[type_name]


_FACTORS_AT = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "MXFP4": (),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
}
