"""Choose the number of examples: more with `SPECINFER_TEST_THOROUGH`, which `make test-thorough` sets."""

import os

THOROUGH = bool(os.environ.get("SPECINFER_TEST_THOROUGH"))


def effort(usual: int, thorough: int) -> int:
    """Return `thorough` in thorough runs, else `usual`."""
    return thorough if THOROUGH else usual
