import pytest

pytestmark = pytest.mark.either_binding  # all tests of this folder


@pytest.fixture
def compat():
    from mdispatch import torch_compat

    return torch_compat
