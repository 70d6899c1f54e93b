"""The rendered manifests, for every test with the argument `objects`."""

import pytest

from tests.deploy.helm.chart_cases import CASES, rendered_case
from tests.deploy.helm.rendered import Rendered


@pytest.fixture(scope="module", params=CASES)
def objects(request: pytest.FixtureRequest) -> Rendered:
    """Rendered objects of one case of `tests.deploy.helm.chart_cases`."""
    return rendered_case(request.param)
