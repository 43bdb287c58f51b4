# Made by .ci/stubs.py from mdispatch/__init__.py.
from mdispatch.dispatch.higher_order import *
