"""A real verifier whose acceptance is synthetic; benchmarks start it, with the histogram in the environment.

    SPECINFER_BENCHMARK_SYNTHETIC_ACCEPTANCE="greedy, 16 nodes" python -m benchmarks.synthetic.verifier ...

All else is `python -m verifier_svc`, settings included. `Describe` answers that acceptance is "synthetic".
"""

import os
import sys
from collections.abc import Sequence

from benchmarks.synthetic.histogram import WARNING, measured
from benchmarks.synthetic.rule import HISTOGRAM_VARIABLE, RULE_NAME, synthetic_rules
from specinfer.errors import SpecInferError
from verifier_svc.__main__ import main as start_verifier


def main(argv: Sequence[str]) -> None:
    """Starts the verifier; exit code 2 without a histogram."""
    try:
        histogram = measured(os.environ.get(HISTOGRAM_VARIABLE, ""))
    except SpecInferError as error:
        print(f"{HISTOGRAM_VARIABLE}: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{WARNING} Histogram: {histogram.name}", file=sys.stderr)
    with synthetic_rules(histogram):
        start_verifier([*argv, "--acceptance", RULE_NAME])


if __name__ == "__main__":
    main(sys.argv[1:])
