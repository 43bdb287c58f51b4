# Made by .ci/stubs.py from mdispatch/__init__.py.
from mdispatch.torch_compat.python_dispatcher import *
