"""Number of examples that tests try: more with `SPECINFER_TEST_THOROUGH`, as `make test-thorough` sets it."""

import os

THOROUGH = bool(os.environ.get("SPECINFER_TEST_THOROUGH"))


def effort(usual: int, thorough: int) -> int:
    """Return the number of examples to try."""
    return thorough if THOROUGH else usual
