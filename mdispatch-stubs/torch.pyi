# Made by .ci/stubs.py from mdispatch/__init__.py.
from mdispatch.authoring.torch import *
