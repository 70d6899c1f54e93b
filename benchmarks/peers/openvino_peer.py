"""Measure OpenVINO GenAI on the task read from standard input.

It decodes plainly and with prompt lookup, by batch size, with continuous batching. OpenVINO's reader converts the GGUF
file: weights in 4 bits stay as they are (int4). For int8, a GGUF file of the same weights in float16 is compressed by
NNCF, with one scale per row. No wheel has a draft model with this vocabulary.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import openvino
import openvino_genai as genai
from measure import Recorder, Task, answer_tasks

LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 3}
CACHE_GB = 1


def load(task: Task) -> Callable[[Task], dict[str, Any]]:
    variant = task["variant"]
    with tempfile.TemporaryDirectory() as folder:
        directory = convert(Path(task["gguf"]), Path(folder), variant)
        peers = {
            f"{kind} ({variant})": Peer(directory, task, lookup)
            for kind, lookup in (("plain", {}), ("prompt lookup", LOOKUP))
        }
    return lambda task: {kind: peer.measure(task) for kind, peer in peers.items()}


def convert(gguf: Path, folder: Path, variant: str) -> Path:
    """Return the folder with the weights in OpenVINO's format.

    The reader writes next to the GGUF file; int8 weights are written to `folder`.
    """
    genai.LLMPipeline(str(gguf), "CPU", enable_save_ov_model=True)
    if variant == "int4":
        return gguf.parent
    core = openvino.Core()
    compressed = nncf.compress_weights(core.read_model(gguf.parent / "openvino_model.xml"))
    openvino.save_model(compressed, folder / "openvino_model.xml")
    for part in gguf.parent.glob("openvino_*tokenizer.*"):
        (folder / part.name).symlink_to(part)
    return folder


class Rounds(genai.StreamerBase):
    """Streamer that records every round of a single request."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def write(self, token: int | list[int]) -> genai.StreamingStatus:
        self._recorder.tick()
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


class Peer:
    """One pipeline, with or without prompt lookup."""

    def __init__(self, directory: Path, task: Task, lookup: dict[str, int]) -> None:
        self._task, self._lookup = task, lookup
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = CACHE_GB, max(task["batches"])
        properties = {"INFERENCE_NUM_THREADS": task["threads"]} | ({"prompt_lookup": True} if lookup else {})
        self._pipeline = genai.ContinuousBatchingPipeline(directory, scheduler, "CPU", properties)

    def measure(self, task: Task) -> dict[str, Any]:
        """Return tokens per second by batch size, and figures of single requests."""
        self._task, recorder = task, Recorder()
        for prompt in task["prompts"][: task["few"] + 1]:
            recorder.begin()
            (output,) = self._generate([prompt], Rounds(recorder))
            recorder.end(output)
        rates = {"1": recorder.rate(task["new_tokens"])}
        for batch in task["batches"]:
            if batch > 1:
                rates[str(batch)] = self._rate(batch)
        return {**rates, **recorder.report(), "settings": self._settings()}

    def _rate(self, batch: int) -> float:
        prompts = self._task["prompts"]
        self._generate(prompts[:batch])
        started = time.perf_counter()
        for start in range(0, 2 * batch, batch):
            self._generate(prompts[start : start + batch])
        return 2 * batch * self._task["new_tokens"] / (time.perf_counter() - started)

    def _generate(self, prompts: list[list[int]], streamer: Rounds | None = None) -> list[list[int]]:
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        config = genai.GenerationConfig(
            max_new_tokens=self._task["new_tokens"], ignore_eos=True, do_sample=False, **self._lookup
        )
        result = self._pipeline.generate(inputs, [config] * len(prompts), streamer)
        return [list(output.m_generation_ids[0]) for output in result]

    def _settings(self) -> str:
        threads = f"{self._task['threads']} threads, OpenVINO GenAI {genai.__version__}, cache in 8 bits"
        weights = {"int4": "the GGUF file's blocks of 4 bits", "int8": "8 bits, a scale per row (NNCF)"}
        lookup = "".join(f", {name}={value}" for name, value in self._lookup.items())
        return f"{weights[self._task['variant']]}; {threads}{lookup}"


if __name__ == "__main__":
    answer_tasks(load)
