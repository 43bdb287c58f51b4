"""Makes each of Python's own allocations while _call is imported fail in turn: an import that fails
says so. Needs _testcapi. Prints how many imports failed so.
"""

import _testcapi
import importlib.machinery
import importlib.util
import sys

from mdispatch.facts.native import _call

TRIES = 400  # more allocations than an import needs


def main():
    loader = importlib.machinery.ExtensionFileLoader(_call.__name__, _call.__file__)
    spec = importlib.util.spec_from_file_location(_call.__name__, _call.__file__, loader=loader)
    failed = 0
    for nth in range(TRIES):
        module = loader.create_module(spec)
        error = None
        _testcapi.set_nomemory(nth, nth + 1)
        try:
            loader.exec_module(module)
        except BaseException as raised:
            error = raised
        _testcapi.remove_mem_hooks()
        # CPython 3.11 can fail to make a type and set no exception. It notices that by itself.
        known = isinstance(error, SystemError) and "without setting an exception" in str(error)
        assert error is None or type(error) is MemoryError or known, (nth, error)
        failed += error is not None
    assert error is None, "more tries are needed"
    print(failed)


if __name__ == "__main__":
    sys.exit(main())
