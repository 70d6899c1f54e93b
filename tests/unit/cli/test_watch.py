"""`status --watch` compares two states of a gateway."""

import io

from rich.console import Console

from specinfer.cli.status import Interval, Look, watch_lines, watch_table
from specinfer.v1 import generation_pb2


def state(steps: int, gateway_id: str = "g1", **fields: int) -> generation_pb2.StatusReply:
    """Return the state after `steps` steps, each of 2 tokens, 10 ms, and a tree of 4 nodes with 1 accepted."""
    reply = generation_pb2.StatusReply(
        gateway_id=gateway_id,
        running=3,
        waiting=1,
        redis_ready=True,
        steps=steps,
        new_tokens=2 * steps,
        finished=steps // 10,
        trees=steps,
        drafted=4 * steps,
        accepted=steps,
        planner=generation_pb2.PlannerState(reason="fastest", speculators=["a"], step_nodes=4),
    )
    for name, ms in (("draft", 2), ("merge", 0.5), ("verify", 7), ("commit", 0.5)):
        reply.phases.add(name=name, seconds=steps * ms / 1000)
    reply.speculators.add(
        name="a", service="s:1", ready=True, drafted=4 * steps, accepted=steps, wins=steps // 2
    )
    reply.speculators.add(name="b", service="s:2")
    reply.verifiers.add(address="v:1", ready=True, gateway_id="g2")
    reply.gateway_states.add(gateway_id="g2", verifiers=1, room=5, draining=True)
    return reply


def test_rates_and_shares_are_of_the_time_between_two_states() -> None:
    rows = dict(Interval(Look(state(100), 10.0), Look(state(150), 12.0)).rows())
    assert rows["gateway"] == "g1"
    assert rows["gateway g2"] == "alive, drives 1 verifiers, room for 5 requests, draining"
    assert rows["verifier v:1"] == "ready, driven by gateway g2"
    assert rows["requests"] == "3 running, 1 waiting, 2.5 finished/s"
    assert rows["tokens"] == "50.0 tokens/s, 300 since start"
    assert rows["steps"] == "25.0 steps/s, 2.00 tokens each"
    assert rows["phases"] == "draft 2.0, merge 0.5, verify 7.0, commit 0.5 ms per step"
    assert rows["acceptance"] == "25% of nodes, 1.00 per tree"
    assert rows["speculator a"] == "ready (s:1), accepted 25%, won 50% of trees"
    known = state(150)
    known.speculators[0].calibration_error, known.speculators[0].raw_calibration_error = 0.02, 0.125
    known.speculators[0].auc = 0.8
    rows = dict(Interval(Look(state(100), 10.0), Look(known, 12.0)).rows())
    assert rows["speculator a"].endswith("of trees, calibration error 0.020 (0.125 as said), AUC 0.80")
    assert rows["speculator b"] == "not answering (s:2), nothing verified"
    assert rows["latest step"] == "a, 4 nodes: fastest"


def test_there_are_no_rates_at_first_after_an_idle_time_or_for_another_process() -> None:
    first, other = Look(state(100), 10.0), Look(state(5, gateway_id="g9"), 12.0)
    for interval in (Interval(None, first), Interval(first, other)):
        rows = dict(interval.rows())
        assert rows["tokens"].startswith("- tokens/s")
        assert (rows["phases"], rows["acceptance"]) == ("-", "-")
        assert rows["requests"] == "3 running, 1 waiting"
        assert rows["speculator a"] == "ready (s:1)"
    idle = dict(Interval(first, Look(state(100), 12.0)).rows())
    assert (idle["tokens"], idle["phases"]) == ("0.0 tokens/s, 200 since start", "-")


def test_it_is_shown_as_a_table_and_written_as_lines() -> None:
    rows = Interval(None, Look(state(1), 0.0)).rows()
    file = io.StringIO()
    Console(file=file, width=100).print(watch_table("title", rows))
    assert "3 running, 1 waiting" in file.getvalue()
    lines = watch_lines("title", rows).splitlines()
    assert lines[0] == "title"
    assert "  redis: ready" in lines
