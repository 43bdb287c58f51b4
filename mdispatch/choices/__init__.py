"""The decisions that all members have in common.

One member chooses for all (choosing.py). The choices that are there can be listed, withdrawn,
exported into a file and loaded from one (listing.py).

Or each has a value of its own, and all must have the same (agreeing.py), or the same at each step
of a running job (steps.py). The agreements that are there can be listed (looking.py).
"""

from ..seam import late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .agreeing import leave
    from .listing import Choice, export, load, made, withdraw
    from .looking import Agreement, Asked, agreements

__all__ = ["Agreement", "Asked", "Choice", "agreements", "export", "leave", "load", "made"]
__all__ += ["withdraw"]

__getattr__ = late(
    __name__,
    {
        **dict.fromkeys(__all__, "listing"),
        "leave": "agreeing",
        **dict.fromkeys(("Agreement", "Asked", "agreements"), "looking"),
    },
)
