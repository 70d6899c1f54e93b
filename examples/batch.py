"""Answer a file in OpenAI's batch format by a running server of OpenAI's API.

python examples/batch.py requests.jsonl answers.jsonl http://127.0.0.1:8000

Answers are written as they come. The same command continues: only lines without an answer are sent again. A full server
is asked for ten minutes; 400, 404, 413 and 422 are answers of the line.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from specinfer.errors import UnavailableError
from specinfer.openai_api.server import ApiServer

AT_ONCE, PATIENCE_S = 16, 600.0
BUSY, ANSWERS = (429, 503), (200, 400, 404, 413, 422)


def ask(server: ApiServer, row: dict[str, Any]) -> dict[str, Any]:
    """Return the output line of an input line."""
    line = {"id": f"batch_req_{row['custom_id']}", "custom_id": row["custom_id"]}
    path, until = row["url"].removeprefix("/v1/"), time.monotonic() + PATIENCE_S
    try:
        while (reply := server.call(path, row["body"])).status in BUSY and time.monotonic() < until:
            pause = reply.headers.get("retry-after", "")
            time.sleep(min(60.0, float(pause)) if pause.isdecimal() else 1.0)
    except UnavailableError as error:
        return {**line, "response": None, "error": {"code": "unavailable", "message": str(error)}}
    said = {"status_code": reply.status, "request_id": reply.headers.get("x-request-id", "")}
    return {**line, "response": {**said, "body": reply.content}, "error": None}


def is_answer(row: dict[str, Any]) -> bool:
    return row["response"] is not None and row["response"]["status_code"] in ANSWERS


def answered(output: Path) -> set[str]:
    """Return the ids with an answer; remove all other lines, such as a torn last one."""
    rows = list[dict[str, Any]]()
    for line in output.read_text("utf-8", "replace").splitlines() if output.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            print(f"{output}: a torn line is removed", file=sys.stderr)
    rows = [row for row in rows if is_answer(row)]
    fresh = output.with_name(f"{output.name}.new")
    fresh.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    fresh.replace(output)
    return {row["custom_id"] for row in rows}


def main(input_: str, output: str, url: str) -> int:
    """Answer all lines; return 1 if the server failed to answer one."""
    server, path = ApiServer.at(url, os.environ.get("SPECINFER_API_KEY")), Path(output)
    known, failed = answered(path), 0
    rows = [json.loads(line) for line in Path(input_).read_text("utf-8").splitlines() if line.strip()]
    with ThreadPoolExecutor(AT_ONCE) as workers, path.open("a", encoding="utf-8") as file:
        running = [workers.submit(ask, server, row) for row in rows if row["custom_id"] not in known]
        for future in as_completed(running):
            row = future.result()
            failed += not is_answer(row)
            print(json.dumps(row), file=file, flush=True)
    print(f"{len(running) - failed} answered, {failed} failed, {len(known)} by earlier runs", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
