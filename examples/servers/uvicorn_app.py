"""What a worker of uvicorn imports: it verifies first. See uvicorn_main.py."""

import os
import signal

import mdispatch as md

try:
    md.warm_up(["web_ops"])
except Exception:
    # uvicorn replaces a worker that ends by another one, for ever: end the one that does so.
    os.kill(os.getppid(), signal.SIGTERM)
    raise

from web_app import asgi

__all__ = ["asgi"]
