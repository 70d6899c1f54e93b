"""Read the requests of a file in OpenAI's batch format."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specinfer.errors import InvalidInputError
from specinfer.text.prompts import read_text

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A request of the input file."""

    line: int
    custom_id: str
    path: str
    """Path under the server's base URL."""
    body: Mapping[str, Any]


def read_jobs(path: Path) -> list[BatchJob]:
    """Return the requests of a file."""
    jobs, lines = list[BatchJob](), dict[str, int]()
    for number, text in enumerate(read_text("input", path).split("\n"), 1):
        if not text.strip():
            continue
        job = _read_job(f"{path}:{number}", number, text)
        if job.custom_id in lines:
            raise InvalidInputError(
                f"{path}:{number}", job.custom_id, f"repeats the custom_id of line {lines[job.custom_id]}"
            )
        lines[job.custom_id] = number
        jobs.append(job)
    if not jobs:
        raise InvalidInputError("input", str(path), "has no requests")
    return jobs


def _read_job(place: str, number: int, text: str) -> BatchJob:
    row = read_object(place, text)
    for name in row:
        if name not in ("custom_id", "method", "url", "body"):
            raise InvalidInputError(
                f"{place}: {name}", row[name], "unknown field: a line has custom_id, method, url and body"
            )
    identity, url, body = row.get("custom_id"), row.get("url"), row.get("body")
    if not isinstance(identity, str) or not identity:
        raise InvalidInputError(f"{place}: custom_id", identity, "must be a non-empty string")
    if row.get("method", "POST") != "POST":
        raise InvalidInputError(f"{place}: method", row["method"], "must be POST")
    if url not in URLS:
        raise InvalidInputError(f"{place}: url", url, f"must be one of {', '.join(URLS)}")
    if not isinstance(body, dict):
        raise InvalidInputError(f"{place}: body", body, "must be an object")
    if body.get("stream"):
        raise InvalidInputError(f"{place}: body.stream", body["stream"], "must be false or absent in a batch")
    return BatchJob(number, identity, url.removeprefix("/v1/"), body)


def read_object(place: str, text: str) -> dict[str, Any]:
    """Return the JSON object of a line."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(place, text[:60], f"must be a JSON object: {error}") from error
    if not isinstance(row, dict):
        raise InvalidInputError(place, text[:60], "must be a JSON object")
    return row
