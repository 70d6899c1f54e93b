"""The rendered manifests, for every test that takes `objects`."""

import pytest

from tests.deploy.kustomize import render_overlay, render_with
from tests.deploy.overlay_cases import CASES
from tests.deploy.rendered import Rendered


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "+".join([case[0], *case[1]]))
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """One of the cases of `tests.deploy.overlay_cases`."""
    overlay, components = request.param
    if not components:
        return render_overlay(overlay)
    return render_with(overlay, components, tmp_path_factory.mktemp("overlay"))
