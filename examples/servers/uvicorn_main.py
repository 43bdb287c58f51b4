"""uvicorn with two workers: the process that starts them registers, each worker verifies when it
imports uvicorn_app. ``python uvicorn_main.py FD``, with the number of a descriptor that listens.
"""

import sys

import uvicorn

import mdispatch as md

if __name__ == "__main__":
    md.warm_up(["web_ops"])
    uvicorn.run("uvicorn_app:asgi", workers=2, fd=int(sys.argv[1]))
