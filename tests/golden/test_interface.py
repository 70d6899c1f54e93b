"""No flag, variable, field or default changes unnoticed."""

from tests.golden.interface import FILE, interface


def test_names_and_defaults_are_those_of_the_file() -> None:
    now, then = interface().splitlines(), FILE.read_text().splitlines()
    assert sorted(set(then) - set(now)) == [], "lost; if on purpose: python -m tests.golden.interface"
    assert sorted(set(now) - set(then)) == [], "new; python -m tests.golden.interface adds it"
