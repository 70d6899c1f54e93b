"""The rendered manifests, for every test that takes `objects`."""

import pytest

from tests.deploy.helm.chart_cases import CASES, rendered_case
from tests.deploy.helm.rendered import Rendered


@pytest.fixture(scope="module", params=CASES)
def objects(request: pytest.FixtureRequest) -> Rendered:
    """One of the cases of `tests.deploy.helm.chart_cases`."""
    return rendered_case(request.param)
