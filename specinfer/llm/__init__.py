"""Token-tree speculation in one process: `LLM` and `AsyncLLM`. No gRPC, no Redis."""

from specinfer.llm.background import AsyncLLM
from specinfer.llm.driver import TextDelta
from specinfer.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from specinfer.llm.params import SamplingParams
from specinfer.llm.sync import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "TextDelta",
]
