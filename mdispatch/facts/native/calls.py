"""What calls are made of: the extension, or its twin in plain Python."""

from __future__ import annotations

from .binding import which

TYPE_CHECKING = False
if TYPE_CHECKING or which != "none":
    from ._call import *
else:
    from .calls_py import *
