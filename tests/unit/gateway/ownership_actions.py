"""Actions of the ownership model: of gateways and clients, arrivals of messages, and faults."""

from tests.unit.gateway.ownership_model import (
    NEW,
    NOBODY,
    Actions,
    Record,
    Redis,
    Rules,
    Run,
    State,
    Step,
    Tokens,
    Verifier,
    Write,
    gone,
    name,
    next_fence,
    put,
    with_gateway,
    with_ranks,
    with_record,
    with_run,
)


def successors(state: State, rules: Rules) -> Actions:
    """Yield every possible action and the state after it."""
    for part in (_gateways, _arrivals, _clients, _faults):
        for action, following in part(state, rules):
            yield action, with_ranks(_published(following, rules))


def _gateways(state: State, rules: Rules) -> Actions:
    for index, gateway in enumerate(state.gateways):
        if gateway.alive:
            yield from _leases(state, rules, index)
            for request in range(rules.requests):
                yield from _adopts_and_gives_away(state, rules, index, request)
                yield from _sends(state, rules, index, request)


def _leases(state: State, rules: Rules, index: int) -> Actions:
    redis, gateway = state.redis, state.gateways[index]
    if not redis.leases[index]:
        leases = put(redis.leases, index, True)
        yield f"{name(index)} renews its lease", state._replace(redis=redis._replace(leases=leases))
    if not gateway.fence and gone(state, redis.holder if redis.holder != index else NOBODY):
        fence = next_fence(state, rules)
        runs = tuple(run and run._replace(fresh=True) for run in gateway.runs)
        following = state._replace(redis=redis._replace(holder=index, fence=fence))
        yield f"{name(index)} takes the verifier", with_gateway(following, index, fence=fence, runs=runs)
    if gateway.fence and not any(gateway.runs) and redis.holder == index and not gateway.step:
        following = state._replace(redis=redis._replace(holder=NOBODY))
        yield f"{name(index)} gives the verifier away", with_gateway(following, index, fence=0)


def _adopts_and_gives_away(state: State, rules: Rules, index: int, request: int) -> Actions:
    gateway, record = state.gateways[index], state.redis.records[request]
    run, who = gateway.runs[request], f"{name(index)} %s request {request}"
    if record and not run and gateway.fence and len(record.tokens) < rules.tokens:
        free = gone(state, record.owner if record.owner != index else NOBODY)
        if free or not rules.adopts_only_what_is_free:
            following = with_record(state, request, record._replace(owner=index, number=NEW))
            if not free:
                reason = f"{who % 'adopts'} from {name(record.owner)}, whose lease goes on"
                following = following._replace(broken=reason)
            run = Run(NEW, record.tokens, len(record.tokens))
            yield who % "adopts", with_run(following, index, request, run)
    elif run and not record:
        yield who % "writes again", _written_again(state, index, request, run)
    elif run and record and (not gateway.fence or state.left.drains):
        fewer = state.left._replace(drains=state.left.drains - bool(gateway.fence))
        following = with_run(state, index, request, None)._replace(left=fewer)
        if record.owner == index and record.number == run.number:
            following = with_record(following, request, record._replace(owner=NOBODY))
        yield who % "gives away", following


def _written_again(state: State, index: int, request: int, run: Run) -> State:
    """Return the state after a gateway wrote its request again, because Redis had lost it."""
    following = with_record(state, request, Record(index, NEW, run.tokens))
    following = with_run(following, index, request, Run(NEW, run.tokens, len(run.tokens), run.fresh))
    return _stored(following, request, run.tokens)


def _sends(state: State, rules: Rules, index: int, request: int) -> Actions:
    gateway = state.gateways[index]
    run, who = gateway.runs[request], f"{name(index)} sends a %s of request {request}"
    if not run:
        return
    if gateway.fence and not gateway.step and len(run.tokens) < rules.tokens:
        step = Step(index, gateway.fence, request, run.tokens, run.fresh)
        if rules.steps_travel:
            yield who % "step", with_gateway(state, index, step=step)
        else:
            yield _step_arrives(state, rules, step, True)
    if not gateway.write and len(run.tokens) > run.stored:
        write = Write(index, run.number, request, run.stored, run.tokens[run.stored :])
        if rules.writes_travel:
            yield who % "write", with_gateway(state, index, write=write)
        else:
            yield _write_arrives(state, rules, write, True)


def _arrivals(state: State, rules: Rules) -> Actions:
    """Yield arrivals of messages at the verifier and Redis, and senders that give up waiting for an answer."""
    for index, gateway in enumerate(state.gateways):
        for field, message in (("step", gateway.step), ("write", gateway.write)):
            if message is not None:
                following = with_gateway(state, index, **{field: None})
                arrive = _step_arrives if isinstance(message, Step) else _write_arrives
                yield arrive(following, rules, message, True)  # type: ignore[arg-type]
                if len(state.late) < rules.late and gateway.alive:
                    late = following._replace(late=(*state.late, message))
                    yield f"{name(index)} gives up waiting for its {field}", late
    for message in state.late:
        following = state._replace(late=tuple(other for other in state.late if other is not message))
        arrive = _step_arrives if isinstance(message, Step) else _write_arrives
        yield arrive(following, rules, message, False)  # type: ignore[arg-type]


def _step_arrives(state: State, rules: Rules, step: Step, awaited: bool) -> tuple[str, State]:
    verifier, who = state.verifier, f"{name(step.gateway)}'s step of request {step.request}"
    awaited = awaited and state.gateways[step.gateway].alive
    if step.fence < verifier.fence and rules.verifier_checks_fences:
        return f"{who} is fenced", with_gateway(state, step.gateway, fence=0) if awaited else state
    if step.fence < verifier.fence or (step.fence == verifier.fence and step.gateway != verifier.served):
        state = state._replace(
            broken=f"the verifier serves {name(step.gateway)} after {name(verifier.served)}"
        )
    if step.fence > verifier.fence:
        verifier = Verifier(step.fence, (None,) * rules.requests, step.gateway)
    cached = verifier.cached[step.request]
    if not step.fresh and (cached is None or len(cached) != len(step.tokens) - 1):
        return f"{who} is to be sent whole", _resynchronised(state._replace(verifier=verifier), step, awaited)
    context = step.tokens if step.fresh else (*cached, step.tokens[-1])  # type: ignore[misc]
    if context != step.tokens:
        state = state._replace(broken=f"the verifier continues {context} for {step.tokens}")
    verifier = verifier._replace(served=step.gateway, cached=put(verifier.cached, step.request, context))
    following = state._replace(verifier=verifier)
    return f"{who} is served", _committed(following, rules, step) if awaited else following


def _resynchronised(state: State, step: Step, awaited: bool) -> State:
    run = state.gateways[step.gateway].runs[step.request]
    return with_run(state, step.gateway, step.request, run._replace(fresh=True)) if run and awaited else state


def _committed(state: State, rules: Rules, step: Step) -> State:
    run = state.gateways[step.gateway].runs[step.request]
    if not run or run.tokens != step.tokens:
        return state
    token = step.gateway if rules.drawn else len(step.tokens)
    run = run._replace(tokens=(*run.tokens, token), fresh=False)
    return with_run(state, step.gateway, step.request, run)


def _write_arrives(state: State, rules: Rules, write: Write, awaited: bool) -> tuple[str, State]:
    index, request, record = write.gateway, write.request, state.redis.records[write.request]
    run, who = state.gateways[index].runs[request], f"{name(index)}'s write of request {request}"
    awaited = awaited and run is not None and run.number == write.number
    if record is None:
        return f"{who} finds no record", state
    if not _may_write(rules, record, write):
        return f"{who} is refused", with_run(state, index, request, None) if awaited else state
    end = write.start + len(write.tokens)
    tokens = record.tokens[: write.start] + write.tokens + record.tokens[end:]
    state = _stored(with_record(state, request, record._replace(tokens=tokens)), request, tokens)
    if record.owner != index:
        state = state._replace(broken=f"{name(index)} writes what {name(record.owner)} owns")
    elif record.number != write.number:
        state = state._replace(broken=f"{name(index)} writes under an adoption that is over")
    if run and awaited:
        run = None if end == rules.tokens else run._replace(stored=end)
        state = with_run(state, index, request, run)
    return f"{who} is applied", state


def _may_write(rules: Rules, record: Record, write: Write) -> bool:
    if not rules.writes_name_their_writer:
        return True
    same_adoption = record.number == write.number or not rules.writes_name_their_adoption
    return record.owner == write.gateway and same_adoption


def _stored(state: State, request: int, tokens: Tokens) -> State:
    """Return the state with tokens stored in Redis; stored tokens may only be extended."""
    truth = state.truth[request]
    if tokens[: len(truth)] != truth[: len(tokens)]:
        return state._replace(broken=f"{truth} of request {request} is overwritten by {tokens}")
    longer = max(truth, tokens, key=len)
    return state._replace(truth=put(state.truth, request, longer))


def _clients(state: State, rules: Rules) -> Actions:
    for request, record in enumerate(state.redis.records):
        if record is None and len(state.seen[request]) < rules.tokens:
            yield f"the client sends request {request}", with_record(state, request, Record(NOBODY, 0, ()))


def _published(state: State, rules: Rules) -> State:
    """Return the state after clients have read all tokens that gateways or Redis show."""
    for request, record in enumerate(state.redis.records):
        runs = [run for run in (gateway.runs[request] for gateway in state.gateways) if run]
        shown = [run.tokens[: run.stored] if rules.publishes_after_writes else run.tokens for run in runs]
        seen = max([state.seen[request], *shown, record.tokens if record else ()], key=len)
        for tokens in (*shown, seen):
            if tokens != state.truth[request][: len(tokens)]:
                reason = f"request {request}: {tokens} is shown, {state.truth[request]} was stored"
                return state._replace(broken=reason)
        if seen != state.seen[request]:
            state = state._replace(seen=put(state.seen, request, seen))
    return state


def _faults(state: State, rules: Rules) -> Actions:
    redis, left = state.redis, state.left
    for index, gateway in enumerate(state.gateways):
        if redis.leases[index] and (left.expiries or not gateway.alive):
            leases = put(redis.leases, index, False)
            fewer = left._replace(expiries=left.expiries - gateway.alive)
            following = state._replace(redis=redis._replace(leases=leases), left=fewer)
            yield f"{name(index)}'s lease ends", following
        if gateway.alive and left.crashes:
            following = state._replace(left=left._replace(crashes=left.crashes - 1))
            nothing = (None,) * rules.requests
            yield f"{name(index)} crashes", with_gateway(following, index, alive=False, fence=0, runs=nothing)
    if left.losses and any(redis.records):
        empty = Redis((False,) * rules.gateways, (None,) * rules.requests, NOBODY, 0)
        yield "Redis loses its data", state._replace(redis=empty, left=left._replace(losses=left.losses - 1))


def holds(state: State) -> bool:
    """Return True if no action has broken an invariant."""
    return not state.broken
