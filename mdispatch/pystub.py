"""The Python module that an operator names for its fake kernel: reading it, and asking for it.

See _pystubs.py for what is done with it.
"""

from __future__ import annotations

from ._nearest import shown
from ._pystubs import policy, read_stub
from ._targets import target_of
from .errors import InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._targets import Op
    from .registry import Registry

__all__ = ["python_module", "require_python_modules"]


def python_module(op: Op, *, registry: Registry | None = None) -> tuple[str, str] | None:
    """The module and the context that ``Library.set_python_module`` named for an operator; None
    where it named none. Of several the newest that was not closed.

    ``op`` is "ns::name" or "ns::name.overload", an operator, or one of ``custom_op``. It may be one
    that another process defined, of which no module was imported here. ``registry`` is where to
    look, if ``op`` is a name and the default one is not meant.

    Raises InvalidNameError, InvalidArgumentError, RegistryClosedError. (c10: Dispatcher::getPyStub;
    torch._C._dispatch_pystub)
    """
    name, its = target_of(op, None, registry)
    stub = read_stub(its._facts, name)
    return None if stub is None else stub[:2]


def require_python_modules(required: bool) -> bool:
    """Whether, in this interpreter, each fake kernel of an operator that was defined in another
    file needs a module named by ``Library.set_python_module``, so that users of the operator hear
    what to import. False at the start. Returns what was so before.

    It is looked at when a fake kernel runs for the first time; where none is named, that raises
    WrongModuleError. Raises InvalidArgumentError for what is no bool. (torch:
    torch._utils_internal.REQUIRES_SET_PYTHON_MODULE)
    """
    if not isinstance(required, bool):
        raise InvalidArgumentError(f"required={shown(required)}: it is True or False")
    before, policy.is_strict = policy.is_strict, required
    return before
