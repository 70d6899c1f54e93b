"""`LLM`s of tiny models with scripted drafters."""

from collections.abc import Mapping
from typing import Any

from specinfer.drafters import Drafter
from specinfer.llm import LLM, SamplingParams
from specinfer.llm.build import assemble
from specinfer.llm.engine import LocalEngine
from specinfer.llm.options import LLMOptions
from specinfer.model.runner import ModelRunner
from specinfer.planning.pass_curve import PassCurve
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import runner_of, tiny_transformers

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def tiny_engine(
    drafters: Mapping[str, Drafter] | None = None, model: Any = None, together: bool = False, **options: Any
) -> LocalEngine:
    """Return the engine of a tiny model in float32, or of a runner.

    Each drafter is a separate group; `together`: all are one group.
    """
    options = {"adaptive": False, "tree_nodes": 8, "max_num_seqs": 8, "kv_tokens": 2048} | options
    if not isinstance(model, ModelRunner):
        model = runner_of(model or tiny_transformers("llama"), kv_tokens=options["kv_tokens"])
    groups = [{name: drafter} for name, drafter in (drafters or {}).items()]
    if together and drafters:
        groups = [dict(drafters)]
    return assemble(
        model, ascii_tokenizer(), groups, LLMOptions(**options), PassCurve([(1, 0.001), (64, 0.002)])
    )


def tiny_llm(drafters: Mapping[str, Drafter] | None = None, model: Any = None, **options: Any) -> LLM:
    return LLM.of(tiny_engine(drafters, model, **options), ascii_tokenizer())
