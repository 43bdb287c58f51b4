import pytest

pytestmark = pytest.mark.shared  # all tests of this folder
