"""Log lines never contain the messages of exceptions, which may quote prompts, unless allowed."""

import asyncio
import gc
import json
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from specinfer.errors import FaultError, InvalidInputError, MalformedTreeError, SettingError, SpecInferError
from specinfer.service.channel import open_channel
from specinfer.service.logs import DiscreetFormatter, make_formatter, set_up_logs
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from specinfer.system.log_lines import REQUEST_ID, about, in_trace
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc

SECRET = "the marble owl"


def caught(raise_it: Any) -> BaseException:
    try:
        raise_it()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def written(error: BaseException, formatter: logging.Formatter) -> str:
    info = (type(error), error, error.__traceback__)
    return formatter.format(logging.LogRecord("x", logging.ERROR, "f", 1, "a step failed", (), info))


def chain() -> None:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise InvalidInputError("prompt", SECRET, "too long") from error
    except InvalidInputError as error:
        raise ExceptionGroup(SECRET, [ValueError(SECRET), error])  # noqa: B904


def test_exceptions_are_logged_without_their_messages() -> None:
    text = written(caught(chain), DiscreetFormatter())
    assert SECRET not in text
    assert text.startswith("a step failed\n")
    for part in ("KeyError", "ValueError", "ExceptionGroup", "prompt: too long", "test_logs.py", "in chain"):
        assert part in text
    assert SECRET in written(caught(chain), logging.Formatter()), "the negative control"


def test_the_text_cached_by_another_handler_is_not_used() -> None:
    error = caught(chain)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "m", (), (type(error), error, error.__traceback__))
    assert SECRET in logging.Formatter().format(record)
    assert SECRET not in DiscreetFormatter().format(record)


@pytest.mark.parametrize("quote", [False, True])
def test_services_log_whole_exceptions_only_if_configured(
    quote: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sys, threading):
        monkeypatch.setattr(module, "excepthook", module.excepthook)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    try:
        set_up_logs("x", "info", quote)
        logging.error("failed", exc_info=caught(chain))
    finally:
        root.handlers = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
    assert (SECRET in capsys.readouterr().err) is quote
    assert not ServiceSettings().log_requests


@pytest.mark.filterwarnings("ignore")
async def test_a_task_whose_result_is_never_read_is_logged_without_its_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise ValueError(SECRET)

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
    gc.collect()
    (record,) = [r for r in caplog.records if r.name == "asyncio"]
    assert SECRET in record.getMessage()
    assert SECRET not in DiscreetFormatter().format(record)


def test_log_texts_of_our_errors_omit_values_of_requests() -> None:
    assert InvalidInputError("top_k", -1, "must be >= 0").for_logs == "top_k = -1: must be >= 0"
    assert InvalidInputError("stop", SECRET, "too long").for_logs == "stop: too long"
    assert MalformedTreeError("tree.token_ids", [5, 6], "twice").for_logs == "tree.token_ids: twice"
    assert MalformedTreeError("tree.token_ids[1]", 5, "no").for_logs == "tree.token_ids[1]: no"
    assert MalformedTreeError("tree.parents[1]", 5, "no").for_logs == "tree.parents[1] = 5: no"
    assert SettingError("dtype", "float8", "unknown").for_logs == "dtype = 'float8': unknown"
    assert SpecInferError("no room").for_logs == "no room"
    fault = FaultError("the drafter failed", caught(lambda: int(SECRET)))
    assert SECRET in str(fault)
    assert fault.for_logs.startswith("the drafter failed: ValueError at test_logs.py:")


class Broken(speculator_pb2_grpc.SpeculatorServicer):
    """Two methods raise an exception that quotes the request; `Release` refuses correctly."""

    async def Draft(self, requests: Any, context: Any) -> AsyncIterator[speculator_pb2.DraftReply]:
        async for _ in requests:
            raise TypeError(SECRET)
        yield speculator_pb2.DraftReply()

    async def Describe(self, request: Any, context: Any) -> Any:
        raise TypeError(SECRET)

    async def Release(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.NOT_FOUND, "as it should")


async def test_an_exception_in_a_call_ends_it_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = ServiceServer(
        ServiceSettings(listen="127.0.0.1:0", drain_seconds=0), ["specinfer.v1.Speculator"]
    )
    speculator_pb2_grpc.add_SpeculatorServicer_to_server(Broken(), server.grpc)
    async with open_channel(f"127.0.0.1:{await server.start()}") as channel:
        stub = speculator_pb2_grpc.SpeculatorStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await stub.Describe(speculator_pb2.DescribeSpeculatorRequest(), timeout=60)
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            await stub.Draft(iter([speculator_pb2.DraftRequest()]), timeout=60).read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Release(common_pb2.ReleaseRequest(), timeout=60)
    await server.stop()
    for ended in (unary.value, stream.value):
        assert ended.code() is grpc.StatusCode.INTERNAL
        assert (ended.details() or "").startswith("internal error: TypeError at test_logs.py:")
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.NOT_FOUND, "as it should")
    lines = [DiscreetFormatter().format(r) for r in caplog.records] + [r.getMessage() for r in caplog.records]
    assert sum("/specinfer.v1.Speculator/Draft failed" in line for line in lines) == 2
    assert SECRET not in "\n".join(lines)


def as_json(record: logging.LogRecord, quote: bool = False) -> dict[str, Any]:
    line = make_formatter("verifier", "json", quote).format(record)
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def test_json_lines_have_only_fields_with_a_value() -> None:
    record = logging.LogRecord("a.b", logging.INFO, "f", 1, "%d of\n%s", (3, "ä"), None)
    record.created = 1763633702.1239
    assert as_json(record) == {
        "time": "2025-11-20T10:15:02.123Z",
        "level": "INFO",
        "service": "verifier",
        "logger": "a.b",
        "message": "3 of\nä",
    }
    record.__dict__.update(about("r7", "00ff"))
    assert {name: as_json(record)[name] for name in ("request_id", "trace_id")} == {
        "request_id": "r7",
        "trace_id": "00ff",
    }


def test_json_lines_have_the_request_of_their_context() -> None:
    record = logging.LogRecord("a", logging.INFO, "f", 1, "m", (), None)
    token = REQUEST_ID.set("r1")
    try:
        with in_trace("0a"):
            parsed = as_json(record)
        assert (parsed["request_id"], parsed["trace_id"]) == ("r1", "0a")
        assert "trace_id" not in as_json(record)
        record.__dict__.update(about("r2"))
        assert as_json(record)["request_id"] == "r2", "an explicit request id has priority"
    finally:
        REQUEST_ID.reset(token)


def test_json_lines_have_exceptions_without_their_messages() -> None:
    error = caught(chain)
    record = logging.LogRecord(
        "x", logging.ERROR, "f", 1, "failed", (), (type(error), error, error.__traceback__)
    )
    parsed = as_json(record)
    assert SECRET not in json.dumps(parsed)
    assert "prompt: too long" in parsed["exception"]
    assert SECRET in as_json(record, quote=True)["exception"], "the negative control"
    tasks = logging.LogRecord("asyncio", logging.ERROR, "f", 1, f"Task failed\n{SECRET}", (), None)
    assert as_json(tasks)["message"] == "Task failed"


FOREIGN = """
import logging, sys, threading, warnings
from specinfer.service.logs import set_up_logs
set_up_logs("gateway", "info", log_format="json")
from transformers.utils import logging as theirs
theirs.get_logger("transformers.models").warning("a library's line\\nof two")
warnings.warn("an old way")
def fail(): raise KeyError("owl")
thread = threading.Thread(target=fail)
thread.start(), thread.join()
fail()
"""


def test_all_lines_of_a_process_are_json() -> None:
    """Warnings, libraries with their own handlers, exceptions of threads and of the process."""
    done = subprocess.run([sys.executable, "-c", FOREIGN], capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert [(line["level"], line["logger"]) for line in lines] == [
        ("WARNING", "transformers.models"),
        ("WARNING", "py.warnings"),
        *[("CRITICAL", "specinfer.service.logs")] * 2,
    ]
    assert all("KeyError" in line["exception"] and "owl" not in line["exception"] for line in lines[2:])
