"""The names by which PyTorch's own Python code and tests reach its dispatcher, over a registry of
mdispatch.

For people who come from PyTorch, and for tests written against it: the same names, arguments and
results, and a ``RuntimeError``, in other words, where PyTorch raises one. The package has no rules
of its own: it asks libraries, registries, guards and keys. ::

    from mdispatch import torch_compat as C

    m = C._dispatch_library("FRAGMENT", "test", "")
    m.def_("foo(Tensor x) -> Tensor").impl_t_t("foo", "CPU", debug="fn_cpu")
    print(C._dispatch_dump_table("test::foo"))

A program that was written for torch.library runs with one line changed, its import: ``from
mdispatch.torch_compat import torch`` in place of ``import torch``, or ``from mdispatch.torch_compat
import Library, custom_op`` in place of ``from torch.library import Library, custom_op``. The module
``torch_compat.torch`` says which names of ``torch`` are then ours. An operator, a schema, a library
and an operator that custom_op made have more names here than in mdispatch, those of PyTorch's own
code: ``op._schema``, ``op.name()``, ``argument.default_value``, ``library._destroy()``.

The names are those of ``torch._C`` (torch/csrc/utils/python_dispatch.cpp and, for modes and guards,
its neighbours), of torch/_ops.py, torch/library.py and torch/utils/_python_dispatch.py. A
key is a DispatchKey or its name. A name of no key is a RuntimeError; a value of another type is a
TypeError, as is a name that is no str. The functions document their other errors.

The functions work on the default registry, or on another one inside a ``with using(registry):``
block of this thread. As in PyTorch, a module object ends its registrations when it dies, and a
second registration does not replace the first.

Where PyTorch has a fault, the answer is the right one: the tables are always the computed ones, an
operator that does not exist is an error and no crash, the warning of an override names the kernel
that is overridden, and ``FULL_AFTER`` of a key without a place in the order is refused. Where
PyTorch asserts, this raises RuntimeError too. docs/coming-from-pytorch.md says where all other
names of PyTorch's dispatcher are.
"""

from __future__ import annotations

from ..dispatch.kernels import fallthrough_kernel
from ..keys import DispatchKey
from . import infer, keys, library, looking, operators, registering, schemas, threads
from .common import using
from .infer import *
from .keys import *
from .library import *
from .looking import *
from .operators import *
from .registering import *
from .schemas import *
from .threads import *

__all__ = ["DispatchKey", "fallthrough_kernel", "using"]
__all__ += infer.__all__
__all__ += keys.__all__
__all__ += library.__all__
__all__ += looking.__all__
__all__ += operators.__all__
__all__ += registering.__all__
__all__ += schemas.__all__
__all__ += threads.__all__
