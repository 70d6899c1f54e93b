"""`LLM` and `AsyncLLM`: outputs, errors, and callers that abandon requests."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from specinfer.drafters import DraftJob
from specinfer.errors import InvalidInputError, SettingError, UnavailableError
from specinfer.hub import resolve_model
from specinfer.llm import LLM, AsyncLLM, SamplingParams
from specinfer.request.fields import RequestFields
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.entries import StepEntry
from specinfer.tree import TokenTree, TreeLimits
from specinfer.tree.builder import point_tree
from tests.support.local import GREEDY, tiny_engine, tiny_llm
from tests.support.models.saved_model import save_target
from tests.support.system import ScriptedDrafter, ascii_tokenizer, until
from tests.support.tiny_models import tiny_transformers


def guess(root: int) -> TokenTree:
    """Return a tree with one node below the root."""
    return point_tree([root, 5], [-1, 0], [1.0, 0.5], [1])


def test_outputs_are_in_the_order_of_the_prompts_and_have_them() -> None:
    llm = tiny_llm()
    prompts = ["hello", "what now", [30, 31, 32], {"prompt": "a dict"}, {"prompt_token_ids": [7, 8]}]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [output.prompt for output in outputs] == ["hello", "what now", None, "a dict", None]
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in alone]
    assert all(output.finished and len(output.outputs[0].token_ids) == 16 for output in outputs)
    assert outputs[0].outputs[0].text == ascii_tokenizer().decode(outputs[0].outputs[0].token_ids)


def test_more_prompts_than_places_wait() -> None:
    llm = tiny_llm(max_num_seqs=2)
    outputs = llm.generate([[3 + i, 4 + i] for i in range(7)], GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids[0] for output in outputs] == list(range(3, 10))


def test_n_answers_differ_by_seed() -> None:
    llm = tiny_llm()
    params = SamplingParams(n=3, seed=5, temperature=1.0, max_tokens=8, ignore_eos=True)
    together = llm.generate([[9, 9]], params)[0].outputs
    apart = [
        llm.generate([[9, 9]], SamplingParams(seed=5 + i, temperature=1.0, max_tokens=8, ignore_eos=True))[
            0
        ].outputs[0]
        for i in range(3)
    ]
    assert [o.token_ids for o in together] == [o.token_ids for o in apart]
    assert [o.index for o in together] == [0, 1, 2]
    assert len({tuple(o.token_ids) for o in together}) > 1


def test_a_stream_gives_the_same_text_and_frees_its_request_when_closed() -> None:
    llm = tiny_llm()
    whole = llm.generate("abc", GREEDY)[0].outputs[0]
    pieces = list(llm.stream("abc", GREEDY))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
    stream = llm.stream("abc", GREEDY)
    next(stream)
    stream.close()
    llm.generate("other", GREEDY)
    assert llm._driver.engine.verifier.cached_requests == 0


def test_a_stream_keeps_what_other_calls_decoded_for_it() -> None:
    llm = tiny_llm()
    whole = llm.generate("abcdef", GREEDY)[0].outputs[0]
    stream = llm.stream("abcdef", GREEDY)
    first = next(stream)
    others = list(llm.stream("other", GREEDY))  # its steps also finish the first request
    llm.generate("zz", GREEDY)
    pieces = [first, *stream]
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
    assert others[-1].finish_reason == "length"


def test_an_abandoned_request_ends_at_once_and_its_id_is_free() -> None:
    llm = tiny_llm()
    for _ in range(2):  # abandoned before and after the first piece
        llm.stream("abc", GREEDY, request_id="mine")
        stream = llm.stream("abc", GREEDY, request_id="mine")
        next(stream)
        stream.close()
        assert llm._driver.engine.verifier.cached_requests == 0
        assert not llm._driver.engine.busy


def test_a_stop_string_that_the_last_token_completes_is_a_stop() -> None:
    llm = tiny_llm()
    text = llm.generate("abc", GREEDY)[0].outputs[0].text
    stop = text[6:8]
    end = text.index(stop) + len(stop)
    params = SamplingParams(temperature=0, max_tokens=end, ignore_eos=True, stop=stop)
    output = llm.generate("abc", params)[0].outputs[0]
    assert (output.text, output.finish_reason) == (text[: text.index(stop)], "stop")


def test_a_context_may_have_all_positions_of_the_model() -> None:
    llm = tiny_llm(model=tiny_transformers("llama", max_position_embeddings=9000), kv_tokens=10_000)
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    assert len(llm.generate([3] * 8500, params)[0].outputs[0].token_ids) == 2


def test_a_request_that_ends_without_new_text_has_a_finish_reason() -> None:
    llm = tiny_llm()
    pieces = list(llm.stream("abc", SamplingParams(temperature=0, max_tokens=400, deadline_seconds=1e-6)))
    assert pieces[-1].finish_reason == "abort"


def test_a_fault_in_one_verdict_ends_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import specinfer.scheduling.scheduler as scheduler

    apply = scheduler.apply_verdict

    def poisoned(entry: StepEntry, *rest: Any) -> Any:
        if entry.state.tokens[0] == 13 and entry.state.new_tokens == 3:
            raise IndexError("a fault of ours")
        return apply(entry, *rest)

    llm = tiny_llm()
    plain = llm.generate([[5, 6], [7, 8]], GREEDY, use_tqdm=False)
    monkeypatch.setattr(scheduler, "apply_verdict", poisoned)
    requests = [llm._driver.submit(prompt, GREEDY) for prompt in ([5, 6], [13, 13], [7, 8])]
    while llm._driver.busy:
        llm._driver.step()
    assert requests[1].error is not None
    assert [requests[i].output.outputs[0].token_ids for i in (0, 2)] == [
        o.outputs[0].token_ids for o in plain
    ]


def test_chat_uses_the_template() -> None:
    llm = tiny_llm()
    chat = llm.chat([{"role": "user", "content": "hi"}], GREEDY)[0]
    assert chat.prompt_token_ids == ascii_tokenizer().encode("u:hi;a:")
    assert llm.generate("u:hi;a:", GREEDY)[0].outputs[0].token_ids == chat.outputs[0].token_ids
    both = llm.chat([[{"role": "user", "content": text}] for text in ("hi", "ho")], GREEDY, use_tqdm=False)
    assert both[0].outputs[0].token_ids == chat.outputs[0].token_ids


def test_a_stop_string_ends_the_text_before_it() -> None:
    llm = tiny_llm()
    text = llm.generate("abc", GREEDY)[0].outputs[0].text
    stop = text[5:7]
    output = llm.generate("abc", SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, stop=stop))[
        0
    ].outputs[0]
    assert output.text == text[: text.index(stop)]
    assert output.finish_reason == "stop"


def test_exceptions_of_a_drafting_function_lose_only_its_drafts() -> None:
    calls = []

    def draft(context: object, limits: TreeLimits) -> TokenTree | None:
        calls.append(context)
        if len(calls) % 2:
            raise RuntimeError("a fault of the user's")
        return guess(int(context[-1]))  # type: ignore[index]

    plain = tiny_llm().generate([[5, 6, 7]], GREEDY)[0].outputs[0].token_ids
    from specinfer.drafters.custom import CustomDrafter

    llm = tiny_llm({"mine": CustomDrafter(draft, "mine")})
    assert llm.generate([[5, 6, 7]], GREEDY)[0].outputs[0].token_ids == plain
    assert len(calls) > 3


def test_a_drafter_that_raises_loses_only_its_drafts() -> None:
    def fail(job: DraftJob) -> TokenTree:
        raise RuntimeError("broken")

    plain = tiny_llm().generate([[5, 6, 7]], GREEDY)[0].outputs[0].token_ids
    llm = tiny_llm({"broken": ScriptedDrafter(fail)})
    assert llm.generate([[5, 6, 7]], GREEDY)[0].outputs[0].token_ids == plain


@pytest.mark.parametrize(
    ("prompt", "params", "named"),
    [
        ([], GREEDY, "prompt"),
        ([1, 10_000], GREEDY, "10000"),
        ([5] * 600, GREEDY, "prompt + max_new_tokens"),
        ({"text": "x"}, GREEDY, "prompt"),
        ([5], SamplingParams(stop=[""]), "stop_strings"),
    ],
)
def test_bad_prompts_are_named_and_nothing_runs(prompt: object, params: SamplingParams, named: str) -> None:
    llm = tiny_llm()
    with pytest.raises(InvalidInputError, match=named.replace("+", r"\+")):
        llm.generate([[5, 6], prompt], params, use_tqdm=False)  # type: ignore[list-item]
    assert not llm._driver.busy
    assert len(llm.generate([[5, 6]], GREEDY)[0].outputs[0].token_ids) == 16


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": -1}, "temperature"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"speculation": "x"}, "x"),
    ],
)
def test_bad_parameters_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        SamplingParams(**options)  # type: ignore[arg-type]


def test_unknown_options_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(TypeError, match="max_num_seqs"):
        LLM("no such model", max_num_seq=3)
    with pytest.raises(SettingError, match="speculators"):
        LLM("no such model", speculators="everything")
    with pytest.raises(SettingError, match="max_num_seqs"):
        LLM("no such model", max_num_seqs=0)


def test_a_closed_llm_refuses_requests() -> None:
    with tiny_llm() as llm:
        llm.generate("x", GREEDY)
    with pytest.raises(UnavailableError, match="closed"):
        llm.generate("x", GREEDY)


def test_a_forked_process_gets_an_error_at_once() -> None:
    with tiny_llm() as llm:
        llm.generate("x", GREEDY)
        with llm._lock:  # as another thread may have it at that moment
            child = os.fork()
            if child == 0:
                try:
                    llm.generate("x", GREEDY)
                except UnavailableError as error:
                    os._exit(7 if "belongs to process" in str(error) and "'spawn'" in str(error) else 1)
                os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert llm.generate("x", GREEDY)[0].outputs[0].token_ids


def test_trees_of_a_function_are_cut_and_its_failures_counted_by_name() -> None:
    from specinfer.drafters.custom import CustomDrafter

    def wide(context: Any, limits: TreeLimits) -> TokenTree:
        count = limits.nodes + 5
        tokens = [int(context[-1]), *range(3, 3 + count)]
        return point_tree(tokens, [-1] + [0] * count, [1.0] + [0.01] * count, [count])

    def fails(context: object, limits: TreeLimits) -> TokenTree:
        raise RuntimeError("a fault of the user's")

    drafters = {"wide": CustomDrafter(wide, "wide"), "fails": CustomDrafter(fails, "fails")}
    llm = tiny_llm(drafters)
    plain = tiny_llm().generate([[5, 6, 7]], GREEDY)[0].outputs[0].token_ids
    assert llm.generate([[5, 6, 7]], GREEDY)[0].outputs[0].token_ids == plain
    metrics = {metric.name: metric.value for metric in llm.get_metrics()}
    assert metrics["speculator_draft_tokens[wide]"] > 0
    assert metrics["speculator_failed_drafts[wide]"] == 0
    assert metrics["speculator_draft_tokens[fails]"] == 0
    assert metrics["speculator_failed_drafts[fails]"] > 0


def test_metrics_count_tokens_and_drafts() -> None:
    llm = tiny_llm({"one": ScriptedDrafter(lambda job: guess(int(job.context[-1])))})
    llm.generate([[5, 6]], GREEDY)
    metrics = {metric.name: metric.value for metric in llm.get_metrics()}
    assert metrics["generation_tokens"] == 16
    assert metrics["spec_decode_num_draft_tokens"] > 0
    assert metrics["num_requests_running"] == 0


async def test_async_answers_are_batched_and_equal() -> None:
    prompts = [[5 + i, 6 + i] for i in range(6)]
    plain = tiny_llm().generate(prompts, GREEDY, use_tqdm=False)
    async with AsyncLLM.of(tiny_engine(), ascii_tokenizer()) as llm:
        outputs = await asyncio.gather(*(llm.generate(prompt, GREEDY) for prompt in prompts))
        pieces = [piece async for piece in llm.stream(prompts[0], GREEDY)]
        steps = next(metric.value for metric in llm.get_metrics() if metric.name == "steps")
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    assert [t for piece in pieces for t in piece.token_ids] == plain[0].outputs[0].token_ids
    assert steps < 7 * 16


async def test_a_cancelled_task_ends_its_request_and_no_other() -> None:
    async with AsyncLLM.of(tiny_engine(), ascii_tokenizer()) as llm:
        long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
        left = asyncio.create_task(llm.generate([7, 7], long))
        other = asyncio.create_task(llm.generate([8, 8], GREEDY))
        stream = llm.stream([9, 9], long)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        left.cancel()
        assert len((await other).outputs[0].token_ids) == 16
        with pytest.raises(asyncio.CancelledError):
            await left
        await until(lambda: not llm._driver.busy)


async def test_closing_ends_running_requests_with_an_error() -> None:
    reached, resume = threading.Event(), threading.Event()

    def waits(job: DraftJob) -> TokenTree:
        reached.set()
        resume.wait(120)
        return TokenTree.root_only(job.context[-1])

    llm = AsyncLLM.of(tiny_engine({"waits": ScriptedDrafter(waits)}), ascii_tokenizer())
    running = asyncio.create_task(
        llm.generate([7, 7], SamplingParams(temperature=0, max_tokens=400, ignore_eos=True))
    )
    await asyncio.to_thread(reached.wait, 120)
    closing = asyncio.create_task(llm.close())
    await asyncio.sleep(0)  # it starts before the step ends
    resume.set()
    await closing
    with pytest.raises(UnavailableError, match="closed"):
        await running
    with pytest.raises(UnavailableError, match="closed"):
        await llm.generate([7], GREEDY)


async def test_bad_prompts_fail_only_their_call() -> None:
    async with AsyncLLM.of(tiny_engine(), ascii_tokenizer()) as llm:
        good = asyncio.create_task(llm.generate([8, 8], GREEDY))
        with pytest.raises(InvalidInputError, match="10000"):
            await llm.generate([10_000], GREEDY)
        assert len((await good).outputs[0].token_ids) == 16


def test_grpc_and_redis_are_not_imported() -> None:
    code = """
import sys
from specinfer import LLM, SamplingParams
bad = {name.split(".")[0] for name in sys.modules} & {"grpc", "redis", "google", "prometheus_client", "pydantic"}
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_outputs_count_cached_tokens_of_prompts() -> None:
    prompt, params = [5, 9, 17, 40] * 9, SamplingParams(max_tokens=3)
    llm = tiny_llm()
    (first,), (again,) = (llm.generate([prompt], params, use_tqdm=False) for _ in range(2))
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 32)


def test_prompts_without_parameters_have_the_models_defaults() -> None:
    engine = tiny_engine()
    engine.default_sampling = {"temperature": 0.0, "top_k": 7}
    llm = LLM.of(engine, ascii_tokenizer())
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, top_k=7)
    said = [
        llm.generate("hello", params)[0].outputs[0].token_ids
        for params in (None, SamplingParams(temperature=0))
    ]
    assert said[0] == said[1]


async def test_a_request_of_the_table_is_answered_as_by_a_gateway() -> None:
    request = RequestFields(chat=False, max_new_tokens=5, logprobs=True, stop=("\x00\x00",), ignore_eos=True)
    async with AsyncLLM.of(
        tiny_engine({"says": ScriptedDrafter(lambda job: guess(job.context[-1]))}), ascii_tokenizer()
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        expected = (await llm.generate("abc", params)).outputs[0]
        async with llm.ask("abc", request) as stream:
            answer = await stream.read()
    assert (answer.text, answer.token_ids) == (expected.text, expected.token_ids)
    assert answer.finish_reason is FinishReason.LENGTH
    assert len(answer.logprobs) == answer.summary.new_tokens == 5
    assert answer.summary.prompt_tokens == 3
    assert [speculator.name for speculator in answer.stats.speculators] == ["says"]
    assert answer.ttft_s > 0


@pytest.mark.parametrize(("device", "counted"), [("", True), (",device=cpu:0", False)])
def test_the_cache_leaves_memory_for_a_draft_on_the_same_device(
    device: str, counted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, draft = (str(save_target(tmp_path / name)) for name in ("target", "draft"))
    asked: list[tuple[object, ...]] = []

    def fitting(directory: Path, small: Path | None, options: object, draft_weights: str) -> int:
        asked.append((small, draft_weights))
        return 512

    monkeypatch.setattr("specinfer.llm.build.fitting_cache", fitting)
    LLM(model, draft=f"ngram+ssm,model={draft},weights=bf16,kv-tokens=512{device}").close()
    assert asked == [(resolve_model(draft), "bf16") if counted else (None, "auto")]
