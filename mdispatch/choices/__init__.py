"""The decisions that all members have in common.

One member chooses for all (choosing.py). The choices that are there can be listed, withdrawn,
exported into a file and loaded from one (listing.py).

Or each has a value of its own, and all must have the same (agreeing.py), or the same at each step
of a running job (steps.py). The agreements that are there can be listed (looking.py). A roll call
(roll_call.py) compares all that each has.
"""

from ..seam import late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .agreeing import leave
    from .listing import Choice, export, load, made, withdraw
    from .looking import Agreement, Asked, RollCall, agreements, roll_calls
    from .verdicts import Group, Member, Verdict

__all__ = ["Agreement", "Asked", "Choice", "Group", "Member", "RollCall", "Verdict", "agreements"]
__all__ += ["export", "leave", "load", "made", "roll_calls", "withdraw"]

__getattr__ = late(
    __name__,
    {
        **dict.fromkeys(__all__, "listing"),
        "leave": "agreeing",
        **dict.fromkeys(("Agreement", "Asked", "RollCall", "agreements", "roll_calls"), "looking"),
        **dict.fromkeys(("Group", "Member", "Verdict"), "verdicts"),
    },
)
