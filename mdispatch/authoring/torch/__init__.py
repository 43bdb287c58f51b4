"""``mdispatch.torch``: operators of mdispatch as operators of PyTorch (exported.py), and what
PyTorch registers as registrations (watch.py).
"""

from .exported import export
from .watch import Watch, watch

__all__ = ["Watch", "export", "watch"]
