# Made by .ci/stubs.py from mdispatch/__init__.py.
from mdispatch.registry.choices import *
