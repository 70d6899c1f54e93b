"""Measure passes of llama.cpp on tasks read from standard input.

The result is the seconds of passes after a context. A task has `gguf`, `context` (tokens), `rows` of each pass,
`threads`, `variant` (the format of keys and values) and `read`, the context tokens to read; the rest is copied.
All rows of a pass have logits; of `CHUNK` rows (a prompt's), only the last.
"""

import ctypes
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import llama_cpp

Task = dict[str, Any]

CHUNK = 512
SPARE = 64
"""Free cache positions for llama.cpp, in addition to context and chunk."""
FORMATS = {"bf16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}
"""ggml's type of cached keys and values by our `kv_type`.

bf16 is compared with float16, llama.cpp's default: llama.cpp cannot shift a cache in bfloat16.
"""


def load(task: Task) -> Callable[[Task], dict[str, Any]]:
    """Load the model.

    The context is created for the first task, and again if the length changes.
    """
    model = llama_cpp.llama_model_load_from_file(
        task["gguf"].encode(), llama_cpp.llama_model_default_params()
    )
    passes = LlamaPasses(model, FORMATS[task["variant"]])

    def measure(task: Task) -> dict[str, Any]:
        passes.make_context(task["context"], task["read"], task["threads"])
        return {"seconds": [passes.measure(size) for size in task["rows"]], "context": passes.context_seconds}

    return measure


class LlamaPasses:
    """A model with a context that tasks share."""

    def __init__(self, model: Any, kv_type: int) -> None:
        self._model, self._kv_type, self._length, self._context = model, kv_type, 0, None
        self.context_seconds = 0.0
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._tokens = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def make_context(self, length: int, read: int, threads: int) -> None:
        """Read `read` random tokens, then copy them up to `length` tokens.

        An existing context of the same length is reused.
        """
        if length == self._length:
            return
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = length + CHUNK + SPARE + read, CHUNK, CHUNK
        params.n_threads = params.n_threads_batch = threads
        params.n_seq_max, params.kv_unified = 2, True
        params.type_k = params.type_v = self._kv_type
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        read = min(read, length)
        chunks = [(min(CHUNK, read - start), start) for start in range(0, read, CHUNK)]
        self.context_seconds = sum(self._decode(*chunk, every=False) for chunk in chunks)
        for start in range(read, length, read):
            self._copy(read, start)
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, length, -1)
        self._length = length

    def _copy(self, count: int, start: int) -> None:
        """Copy the cached first `count` tokens to position `start`.

        The next pass shifts the copy's positions.
        """
        memory = llama_cpp.llama_get_memory(self._context)
        size = llama_cpp.llama_state_seq_get_size(self._context, 0)
        if start == count:
            self._state = (ctypes.c_uint8 * size)()
            llama_cpp.llama_state_seq_get_data(self._context, self._state, size, 0)
        if not llama_cpp.llama_state_seq_set_data(self._context, self._state, len(self._state), 1):
            raise RuntimeError(f"llama_state_seq_set_data of {count} tokens failed")
        llama_cpp.llama_memory_seq_add(memory, 1, 0, -1, start)
        llama_cpp.llama_memory_seq_cp(memory, 1, 0, -1, -1)
        llama_cpp.llama_memory_seq_rm(memory, 1, -1, -1)

    def measure(self, size: int) -> float:
        """Return the seconds of one pass; remove the pass's tokens."""
        taken = self._decode(size, self._length, every=size != CHUNK)
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, 0, self._length, -1)
        return taken

    def _decode(self, size: int, start: int, every: bool) -> float:
        batch = llama_cpp.llama_batch_init(size, 0, 1)
        batch.n_tokens = size
        for row in range(size):
            batch.token[row], batch.pos[row] = random.randrange(self._tokens), start + row
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
            batch.logits[row] = every or row == size - 1
        started = time.perf_counter()
        failed = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_synchronize(self._context)
        taken = time.perf_counter() - started
        llama_cpp.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode of {size} rows after {start} tokens failed with code {failed}")
        return taken


def answer_tasks(load: Callable[[Task], Callable[[Task], dict[str, Any]]]) -> None:
    """Answer each task, a line of JSON, with a line of JSON.

    `load` runs once, with the first task. What libraries print goes to standard error.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    measure = None
    for line in sys.stdin:
        task = json.loads(line)
        measure = measure or load(task)
        print(json.dumps(measure(task)), file=replies, flush=True)


if __name__ == "__main__":
    answer_tasks(load)
