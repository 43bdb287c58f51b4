"""``mdispatch.torch``: operators of mdispatch as operators of PyTorch. See exported.py."""

from .exported import export

__all__ = ["export"]
