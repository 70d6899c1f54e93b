"""API keys: the caller of each key, refused keys, and changes of the key file."""

import hmac
import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.api import callers
from gateway.api.callers import ANYBODY, GIVEN, Caller, Callers
from specinfer.errors import InvalidInputError, NotFoundError, SettingError, UnauthenticatedError
from specinfer.service.api_keys import ApiKey, limits_of, make_key, read_keys, revoke, write_keys

NOW = datetime(2026, 11, 24, tzinfo=UTC)


def bearer(key: str) -> list[tuple[str, str]]:
    return [("user-agent", "test"), ("authorization", f"Bearer {key}")]


def store(path: Path, *keys: ApiKey) -> Callers:
    write_keys(path, keys)
    return Callers.load(path, lambda: NOW)


def test_without_a_file_every_caller_is_the_same() -> None:
    assert Callers.load(None).identify(None) is ANYBODY
    assert Callers.load(None).identify(bearer("whatever")) is ANYBODY


def test_a_key_identifies_its_caller(tmp_path: Path) -> None:
    limits = {"max_concurrent": 3, "tokens_per_minute": 600, "max_priority": 1, "no_training": True}
    secret, alice = make_key("alice", **limits)
    other, bob = make_key("bob")
    known = store(tmp_path / "keys", alice, bob)
    assert known.identify(bearer(secret)) == Caller("alice", 3, 600, 1, True)
    assert known.identify(bearer(other)) == Caller("bob")
    assert known.identify([("Authorization", f"bearer  {secret} ")]).name == "alice"
    assert limits_of(alice) == limits


def test_wrong_and_expired_keys_are_refused(tmp_path: Path) -> None:
    secret, key = make_key("alice")
    old, expired = make_key("alice", expires=NOW)
    still, valid = make_key("alice", expires=NOW + timedelta(seconds=1))
    known = store(tmp_path / "keys", key, expired, valid)
    assert known.identify(bearer(still)).name == "alice"
    wrong: dict[str, Any] = {
        "must be given once": [None, [], [("authorization", secret)], [*bearer(secret), *bearer(secret)]],
        "no such key": [
            bearer(""),
            bearer(secret[:-1]),
            bearer(key.sha256),
            bearer(f"{secret}x"),
            bearer("ü"),
        ],
        "has expired": [bearer(old)],
    }
    wrong["must be given once"].append([("authorization", f"Basic {secret}")])
    for message, calls in wrong.items():
        for metadata in calls:
            with pytest.raises(UnauthenticatedError, match=message) as caught:
                known.identify(metadata)
            assert secret not in str(caught.value)


def test_an_empty_file_refuses_all_keys(tmp_path: Path) -> None:
    with pytest.raises(UnauthenticatedError):
        store(tmp_path / "keys").identify(bearer("any"))


def test_every_key_is_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare_digest` compares with all keys, for a known and for an unknown key."""
    made = [make_key(f"name{n}") for n in range(3)]
    known = store(tmp_path / "keys", *(key for _, key in made))
    compared: list[bytes] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return hmac.compare_digest(a, b)

    class Watched:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(callers, "hmac", Watched)
    for secret in (made[0][0], made[2][0]):
        compared.clear()
        known.identify(bearer(secret))
        assert compared == [key.digest for _, key in made]
    compared.clear()
    with pytest.raises(UnauthenticatedError):
        known.identify(bearer("unknown"))
    assert len(compared) == 3


def test_the_file_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    secret, key = make_key("alice")
    new, another = make_key("alice")
    known = store(path, key)
    write_keys(path, [key, another])
    assert known.identify(bearer(new)).name == "alice"
    write_keys(path, revoke([key, another], "alice", key.key_id))
    with pytest.raises(UnauthenticatedError):
        known.identify(bearer(secret))
    for broken in ("not json\n", None):
        caplog.clear()
        path.write_text(broken) if broken else path.unlink()
        for _ in range(3):
            assert known.identify(bearer(new)).name == "alice", "the old keys stay"
        errors = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert len(errors) == 1, "logged once"
    write_keys(path, [])
    with pytest.raises(UnauthenticatedError):
        known.identify(bearer(new))


def entry(**fields: Any) -> str:
    return json.dumps({"name": "a", "sha256": "0" * 64} | fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "line 1"),
        (entry(sha256="specinfer_plain-key"), "line 1: sha256"),
        (f"{entry()}\n\n{entry(sha256='1' * 64, name='b c')}", "line 3: name"),
        (entry(max_concurrent=-1), "line 1: max_concurrent"),
        (entry(max_concurrent="3"), "line 1: max_concurrent"),
        (entry(limit=3), "line 1: limit"),
        (entry(expires="2026-11-24T00:00:00"), "line 1: expires"),
        (f"{entry()}\n{entry(name='b')}", "the same sha256"),
    ],
)
def test_errors_in_a_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(SettingError, match=rf"api_keys = '{path}': .*{message}") as caught:
        Callers.load(path)
    assert "plain-key" not in str(caught.value), "a key that was written by mistake"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="No such file"):
        Callers.load(tmp_path / "none")


def test_a_new_file_is_private_and_a_rewritten_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secret, key = make_key("a", expires=NOW)
    write_keys(path, [key])
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret not in path.read_text()
    assert read_keys(path) == [key]
    path.chmod(0o640)
    write_keys(path, [])
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_keys_have_256_bits_and_differ() -> None:
    keys = {make_key("a")[0] for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key.removeprefix("specinfer_")) == 43 for key in keys), "43 characters of 6 bits"


def test_bad_values_and_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="tokens_per_minute = -1"):
        make_key("a", tokens_per_minute=-1)
    with pytest.raises(NotFoundError, match="no key 'b'"):
        revoke([make_key("a")[1]], "b")


def test_a_given_key_is_accepted_beside_those_of_the_file(tmp_path: Path) -> None:
    alone = Callers.load(None, given="secret")
    assert alone.identify([("authorization", "Bearer secret")]).name == GIVEN
    for metadata in ([], [("authorization", "Bearer other")]):
        with pytest.raises(UnauthenticatedError):
            alone.identify(metadata)
    key, stored = make_key("alice")
    write_keys(tmp_path / "keys", [stored])
    both = Callers.load(tmp_path / "keys", given="secret")
    names = [both.identify([("authorization", f"Bearer {one}")]).name for one in ("secret", key)]
    assert names == [GIVEN, "alice"]
