"""``mdispatch.torch``: operators of mdispatch as operators of PyTorch (exported.py), and what
PyTorch registers as registrations (watching.py).
"""

from ..seam import late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .exported import export
    from .watching import Watch, watch

__all__ = ["Watch", "export", "watch"]

__getattr__ = late(__name__, {"Watch": "watching", "export": "exported", "watch": "watching"})
