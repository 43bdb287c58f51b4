"""What calls are made of: the extension, or its twin in plain Python."""

from __future__ import annotations

from .binding import which

TYPE_CHECKING = False
if TYPE_CHECKING or which != "none":
    from ._call import *
else:
    from .calls_py import *

__all__ = ["Cell", "Forward", "Guard", "Names", "Operator", "Packet", "Shape", "Stack", "Steps"]
__all__ += [
    "Unshared",
    "arrived",
    "callable",
    "change",
    "changed",
    "changed_sets",
    "handlers",
    "keys",
    "local",
    "noted",
    "now",
    "number",
]
__all__ += ["observers", "observing", "paths", "quick", "sets", "shows_as_call", "start"]
__all__ += ["surely", "tags", "torch_place", "turn", "types_changed", "values"]
