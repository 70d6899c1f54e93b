"""Defines the interface to the kernels: structures, slot numbers, formats.

The C++ side is `csrc/bindings.h`. When the library is loaded, `bind` compares both sides, field by field and value by
value: with a difference the kernels would read wrong memory.
"""

import ctypes
from collections.abc import Iterator
from ctypes import c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from enum import IntEnum
from typing import Any

LANES = 16
"""Numbers in a vector of the kernels."""
BLOCK = 16
"""Tokens in a cache block."""
PLACES = 3
"""Length of `specinfer.tree.draws.AGREEMENT`, which the kernels read."""


class Activation(IntEnum):
    SILU = 0
    GELU = 1
    RELU = 2
    GELU_TANH = 3


class Storage(IntEnum):
    """Format of a stored matrix: GGUF's types and one own.

    The kernels reorder bfloat16 matrices to BLOCK_FLOAT.
    """

    F32 = 0
    F16 = 1
    BF16 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q5_0 = 5
    Q5_1 = 6
    Q8_0 = 7
    Q2_K = 8
    Q3_K = 9
    Q4_K = 10
    Q5_K = 11
    Q6_K = 12
    IQ4_NL = 13
    IQ4_XS = 14
    BLOCK_FLOAT = 15
    MXFP4 = 16


class CacheKind(IntEnum):
    """Storage of keys and values; bytes have scales per token, head."""

    FLOAT32_CACHE = 0
    BFLOAT16_CACHE = 1
    BYTES_CACHE = 2


class RecurrentKind(IntEnum):
    DELTA_NET = 0
    STATE_SPACE = 1
    SHORT_CONVOLUTION = 2


class MatrixSlot(IntEnum):
    """Numbers of a layer's matrices; HEAD and EAGLE's FC are the model's.

    `expert_slot` numbers experts' matrices from EXPERTS on.
    """

    QUERY = 0
    KEY = 1
    VALUE = 2
    OUT = 3
    GATE = 4
    UP = 5
    DOWN = 6
    CONVOLVED = 7
    OUTPUT_GATES = 8
    STATE_GATES = 9
    STATE_OUT = 10
    HEAD = 11
    FC = 12
    ROUTER = 13
    EXPERTS = 1000


class VectorSlot(IntEnum):
    """Numbers of a layer's vectors.

    FINAL_NORM, POSITIONS (learnt) and HIDDEN_NORM (EAGLE) belong to the model.
    """

    INPUT_NORM = 0
    POST_NORM = 1
    Q_NORM = 2
    K_NORM = 3
    FINAL_NORM = 4
    POSITIONS = 5
    INPUT_NORM_BIAS = 6
    POST_NORM_BIAS = 7
    FINAL_NORM_BIAS = 8
    QKV_BIAS = 9
    OUT_BIAS = 10
    UP_BIAS = 11
    DOWN_BIAS = 12
    HIDDEN_NORM = 13
    HIDDEN_NORM_BIAS = 14
    ATTENDED_NORM = 15
    MLP_NORM = 16
    SINKS = 17
    ROUTER_BIAS = 18
    EXPERT_GATE_BIAS = 19
    EXPERT_UP_BIAS = 20
    EXPERT_DOWN_BIAS = 21
    CONVOLUTION = 22
    DECAY = 23
    TIME_BIAS = 24
    GATED_NORM = 25
    CONVOLUTION_BIAS = 26
    SKIP = 27


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Shape(ctypes.Structure):
    """Sizes and options of a model."""

    _fields_ = [
        *_fields(c_int, "layers hidden inter heads kv_heads dim vocab max_positions"),
        *_fields(c_int, "rotary tables activation gated parallel states residual_normed"),
        *_fields(c_float, "eps embedding_scale score_scale residual_scale score_cap logit_cap bound"),
        *_fields(
            c_int, "kv_layers output_gate recurrent_kind key_heads value_heads key_dim value_dim convolved"
        ),
    ]


class Recurrence(ctypes.Structure):
    """Tokens and states of recurrent layers in a pass."""

    _fields_ = [
        *_fields(c_void_p, "own base tail past past_start inside job_start job_row job_from job_to job_past"),
    ]


class ExpertShape(ctypes.Structure):
    """A layer's mixture of experts."""

    _fields_ = [
        *_fields(c_int, "count used inter shared gated_shared renormalised"),
        *_fields(c_float, "limit alpha"),
    ]


class Pass(ctypes.Structure):
    """One pass; pointers are to int32 unless `bindings.h` states another type."""

    _fields_ = [
        *_fields(c_int, "tokens sequences logits"),
        *_fields(c_void_p, "token_ids positions write_slots visible states hidden extra_start extra"),
        *_fields(c_void_p, "row_start block_start blocks logit_rows keys values"),
        ("cache_blocks", c_int64),
        ("logits_out", c_void_p),
        *_fields(c_int, "threads sparse features"),
        *_fields(c_void_p, "feature_layers features_out"),
        *_fields(c_int, "first_layer end_layer"),
        ("recurrence", c_void_p),
    ]


class GrowthJob(ctypes.Structure):
    """The growth of one request's tree."""

    _fields_ = [
        *_fields(c_int32, "delta held shift blocks nodes depth width greedy draws top_k last"),
        *_fields(c_float, "temperature top_p score_temperature"),
        ("least_reach", c_double),
        ("seed", c_uint64),
    ]


class Growth(ctypes.Structure):
    """The growth of a batch's trees."""

    _fields_ = [
        *_fields(c_int, "jobs most beam support rivals replace levels threads"),
        *_fields(c_void_p, "job token_ids blocks vocabulary widths states keys values"),
        ("cache_blocks", c_int64),
        ("least_level", c_double),
        ("agreement", c_double * PLACES),
        ("level_seconds", c_double),
        ("levels_run", c_int64),
        *_fields(c_void_p, "count tokens parents scores proposals proposal_parent draw_count draws ranks"),
        *_fields(c_void_p, "q_count q_ids q"),
    ]


class _LayoutEntry(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", c_int64)]


_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "si_layout": (c_void_p, [c_void_p]),
    "si_model_new": (c_void_p, [c_void_p, c_int, c_void_p, c_void_p]),
    "si_model_free": (None, [c_void_p]),
    "si_set_matrix": (None, [c_void_p, c_int, c_int, c_int, c_void_p]),
    "si_set_vector": (None, [c_void_p, c_int, c_int, c_void_p, c_int]),
    "si_set_factor": (None, [c_void_p, c_int, c_int, c_float]),
    "si_set_layer": (None, [c_void_p, c_int, c_int, c_int, c_int]),
    "si_set_experts": (None, [c_void_p, c_int, c_void_p]),
    "si_set_embedding": (None, [c_void_p, c_int, c_void_p]),
    "si_requantise": (None, [c_int, c_void_p, c_int, c_int, c_void_p]),
    "si_packed": (c_int64, [c_void_p, c_int, c_int, c_void_p]),
    "si_place": (None, [c_void_p, c_int, c_int, c_void_p]),
    "si_recurrent_sizes": (None, [c_void_p, c_void_p, c_void_p]),
    "si_forward": (None, [c_void_p, c_void_p]),
    "si_grow": (None, [c_void_p, c_void_p]),
    "si_softmax": (None, [c_void_p, c_int, c_float, c_void_p]),
    "si_choose": (c_int, [c_void_p, c_int, c_uint64]),
    "si_choose_by_logits": (c_int, [c_void_p, c_int, c_float, c_uint64]),
    "si_block_bytes": (c_int64, [c_void_p]),
    "si_move": (None, [c_void_p, c_void_p, c_void_p, c_int64, c_int, c_void_p, c_void_p]),
    "si_rotate": (None, [c_void_p, c_void_p, c_int64, c_int, c_void_p, c_void_p, c_void_p]),
}
"""Result and argument types of the library's functions; pointers are addresses."""


def bind(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the library's functions; check that both layouts agree."""
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    ours, theirs = dict(_layout()), dict(_layout_of(library))
    different = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    if different:
        differences = [
            f"{name}: {ours.get(name)} in Python, {theirs.get(name)} in C++" for name in sorted(different)
        ]
        raise AssertionError(f"bindings.py and bindings.h differ: {'; '.join(differences)}")
    return library


def _layout() -> Iterator[tuple[str, int]]:
    """Yield names in C++, and sizes of structures, offsets, or values."""
    yield from (("LANES", LANES), ("BLOCK", BLOCK), ("PLACES", PLACES))
    for values in (Activation, CacheKind, Storage, RecurrentKind, MatrixSlot, VectorSlot):
        yield from ((f"{values.__name__}::{name}", value) for name, value in values.__members__.items())
    for structure in (Shape, ExpertShape, Recurrence, Pass, GrowthJob, Growth):
        yield f"sizeof {structure.__name__}", ctypes.sizeof(structure)
        for field in structure._fields_:
            yield f"{structure.__name__}.{field[0]}", getattr(structure, field[0]).offset


def _layout_of(library: ctypes.CDLL) -> Iterator[tuple[str, int]]:
    count = c_int()
    entries = ctypes.cast(library.si_layout(ctypes.addressof(count)), ctypes.POINTER(_LayoutEntry))
    for index in range(count.value):
        yield entries[index].name.decode(), entries[index].value
