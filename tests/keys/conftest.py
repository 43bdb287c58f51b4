import pytest

pytestmark = pytest.mark.either_binding  # all tests of this folder
