"""llama.cpp's passes on tasks read from standard input: seconds after a context, logits for all rows.

A task has `gguf`, `context`, `rows` and `threads`. A pass of `CHUNK` rows is a prompt's: only its last row has logits.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import llama_cpp
from measure import Task, answer_tasks

CHUNK = 512
SPARE = 64
"""Positions beyond context and chunk."""


def load(task: Task) -> Callable[[Task], dict[str, Any]]:
    """Load the model; its context is made for the first task, and again where another length is wanted."""
    model = llama_cpp.llama_model_load_from_file(
        task["gguf"].encode(), llama_cpp.llama_model_default_params()
    )
    passes = LlamaPasses(model)

    def measure(task: Task) -> dict[str, Any]:
        passes.read_context(task["context"], task["threads"])
        return {"seconds": [passes.measure(size) for size in task["rows"]], "context": passes.context_seconds}

    return measure


class LlamaPasses:
    """A context of the model, read once."""

    def __init__(self, model: Any) -> None:
        self._model, self._length, self._context = model, 0, None
        self.context_seconds = 0.0
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._tokens = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def read_context(self, length: int, threads: int) -> None:
        """Read random tokens, unless that many were read already."""
        if length == self._length:
            return
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = length + CHUNK + SPARE, CHUNK, CHUNK
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        chunks = [(min(CHUNK, length - start), start) for start in range(0, length, CHUNK)]
        self.context_seconds = sum(self._decode(*chunk, every=False) for chunk in chunks)
        self._length = length

    def measure(self, size: int) -> float:
        """Return the seconds of one pass; what it wrote is removed."""
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
            raise RuntimeError(f"llama_decode of {size} rows after {start}: {failed}")
        return taken


if __name__ == "__main__":
    answer_tasks(load)
