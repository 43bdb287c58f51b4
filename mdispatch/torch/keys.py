"""PyTorch's sets of dispatch keys as ours.

The numbers of the keys are PyTorch 2.13's (keys/numbers.py), and PyTorch changes them: up to 2.12
there is a functionality more (Named), up to 2.7 a backend less (MAIA was a functionality). So a set
is translated by the names of its keys, its functionalities and its backends apart, because a
backend's bit may stand in a set without any functionality that exists per backend. What only one
of the two sides knows is left out.

Loaded with the first tensor.
"""

from __future__ import annotations

import os

from ..keys import BACKEND_BITS, BACKENDS, DispatchKey, DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_AUTOGRAD_KEYS = ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor")
_AUTOGRAD = DispatchKeySet(*_AUTOGRAD_KEYS).raw


class TorchKeys:
    """Translates the sets of one PyTorch; ``torch`` is its module."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        torch_c = torch._C
        #: Says a tensor's keys: asks no mode and no ``__torch_function__`` of a user.
        self.ask: Callable[[object], Any] = torch_c._dispatch_keys
        #: Whether its sets have a number. (PyTorch 2.4: no)
        self.has_numbers = hasattr(torch_c.DispatchKeySet, "raw_repr")
        own = {key.name: _their_key(torch_c, key.name) for key in DispatchKey}
        # A set with this key shows by "CPU", "CUDA", ... which backends it has.
        self._dense = torch_c.DispatchKeySet(own["Dense"])
        self._functionalities = [
            (own[key.name], key.raw)
            for key in DispatchKey
            if key.raw and not key.raw & BACKEND_BITS and own[key.name] is not None
        ]
        self._backends = []
        for name in BACKENDS:
            their, raw = own[name], DispatchKey.parse(name).raw
            if their is None:
                continue
            if torch_c.DispatchKeySet(their).has(own["Dense"]):
                self._backends.append((their, raw & BACKEND_BITS))
            else:  # MAIA, where it is a functionality
                self._functionalities.append((their, raw))
        self._watching = [own["Python"], own["FuncTorchDynamicLayerFrontMode"]]
        libraries = os.path.join(os.path.dirname(getattr(torch, "__file__", "")), "lib")
        #: The libraries that have the sets of each thread, and the hooks of profilers.
        self.library = os.path.join(libraries, "libc10.so")
        self.operators = os.path.join(libraries, "libtorch_cpu.so")
        #: Whether a result shares memory with an argument or another result: (the positional
        #: arguments, those by keyword, the results). None in an old PyTorch.
        self.are_aliases: Callable[[Any, Any, Any], bool] | None = getattr(
            torch_c, "_any_output_is_alias_to_input_or_output", None
        )
        #: Our bits by PyTorch's. A dict's reads and writes are whole; two threads note the same.
        self.known: dict[int, int] = {}

    def raw_of(self, tensor: object) -> int:
        """The bits of the tensor's key set."""
        return self.raw_of_set(self.ask(tensor))

    def raw_of_set(self, theirs: Any) -> int:
        """The bits of one of PyTorch's DispatchKeySets."""
        if not self.has_numbers:
            return self._translated(theirs)
        their_raw = theirs.raw_repr()
        raw = self.known.get(their_raw)
        if raw is None:
            raw = self.known[their_raw] = self._translated(theirs)
        return raw

    def is_watched(self) -> bool:
        """Whether this thread has a mode of PyTorch (FakeTensorMode, a TorchDispatchMode) or a
        transform of torch.func that is not turned off. The answer depends on PyTorch's sets of the
        thread and on nothing else: calls in C keep it by these.
        """
        torch_c = self._torch._C
        return any(
            torch_c._dispatch_tls_is_dispatch_key_included(each)
            and not torch_c._dispatch_tls_is_dispatch_key_excluded(each)
            for each in self._watching
        )

    def is_profiled(self) -> bool:
        """Whether PyTorch's profiler looks at this thread."""
        return bool(self._torch._C._autograd._profiler_enabled())

    def asks_functions(self, *classes: type) -> bool:
        """Whether this thread has a TorchFunctionMode that is not turned off, or one of these
        classes of tensors a ``__torch_function__`` of its own: PyTorch calls these in place of an
        operator.
        """
        torch_c = self._torch._C
        are_off = getattr(torch_c, "_is_torch_function_all_disabled", bool)  # PyTorch 2.4: none
        if torch_c._len_torch_function_stack() and not are_off():
            return True
        return any(map(self.has_function, classes)) and torch_c._is_torch_function_enabled()

    def has_function(self, cls: Any) -> bool:
        """Whether PyTorch calls ``__torch_function__`` for tensors of this class."""
        if cls is self._torch.Tensor:
            return False
        is_asked: bool = cls.__torch_function__ is not self._torch._C._disabled_torch_function_impl
        return is_asked

    def record(self, operator: Any, values: tuple[object, ...]) -> Any:
        """A context in which PyTorch's profiler records a call; None in an old PyTorch."""
        made = getattr(getattr(self._torch._C, "_profiler", None), "_RecordFunctionFast", None)
        return None if made is None else made(str(operator.name).partition(".")[0], values)

    def writing(self) -> tuple[Any, Any, int, int, int, int, Any]:
        """For calls in native/bind/call/torch.c that write: a function that raises a tensor's
        version; one that says which keys this thread excludes; the keys that it excludes below
        autograd; the key at which PyTorch raises versions; our bits of that and of autograd; and
        the module that has the level of forward mode.
        """
        torch, torch_c = self._torch, self._torch._C

        def excluded() -> int:
            raw: int = torch_c._dispatch_tls_local_exclude_set().raw_repr()
            return raw

        # A thread in inference mode excludes some of them already.
        keys = [getattr(torch_c.DispatchKey, name) for name in _AUTOGRAD_KEYS]
        before = [torch_c._dispatch_tls_is_dispatch_key_excluded(key) for key in keys]
        for key in keys:
            torch_c._dispatch_tls_set_dispatch_key_excluded(key, False)
        without = excluded()
        with torch_c._AutoDispatchBelowAutograd():
            below = excluded() & ~without
        for key, was in zip(keys, before, strict=True):
            torch_c._dispatch_tls_set_dispatch_key_excluded(key, was)
        views = torch_c.DispatchKeySet(torch_c.DispatchKey.ADInplaceOrView).raw_repr()
        raise_version = torch.autograd.graph.increment_version
        ours = DispatchKey.ADInplaceOrView.raw, _AUTOGRAD
        return raise_version, excluded, below, views, *ours, torch.autograd.forward_ad

    def other(self) -> Any:
        """A tensor without memory whose set few programs have, or None if this thread has a mode of
        PyTorch, which would see that the tensor is made.
        """
        torch_c = self._torch._C
        if torch_c._len_torch_function_stack() or torch_c._len_torch_dispatch_stack():
            return None
        try:
            tensor = self._torch.empty(0, device="meta")
        except RuntimeError:  # the search goes on with the next tensors
            return None
        self.raw_of(tensor)  # its set is known now
        return tensor

    def _translated(self, theirs: Any) -> int:
        raw = 0
        for key, bits in self._functionalities:
            if theirs.has(key):
                raw |= bits
        with_dense = theirs | self._dense
        for key, bits in self._backends:
            if with_dense.has(key):
                raw |= bits
        return raw


def _their_key(torch_c: Any, name: str) -> Any:
    """PyTorch's key of this name, or None. Its enum has keys that its parser does not read, and the
    other way round.
    """
    key = getattr(torch_c.DispatchKey, name, None)
    if key is not None:
        return key
    try:
        return torch_c._dispatch_key_parse(name)
    except RuntimeError:
        return None
