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

from ..keys import BACKEND_BITS, BACKENDS, DispatchKey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


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
        #: The library that has the sets of each thread.
        self.library = os.path.join(
            os.path.dirname(getattr(torch, "__file__", "")), "lib/libc10.so"
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
