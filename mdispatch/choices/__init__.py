"""One member chooses for all (choosing.py). The choices that are there can be listed, withdrawn,
exported into a file and loaded from one (listing.py).
"""

from ..seam import late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .listing import Choice, export, load, made, withdraw

__all__ = ["Choice", "export", "load", "made", "withdraw"]

__getattr__ = late(__name__, dict.fromkeys(__all__, "listing"))
