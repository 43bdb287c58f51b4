"""uvicorn: who registers, as it is started, and what makes one registry of it."""

import sys

from ask_server import TEAM, expect

if __name__ == "__main__":
    uvicorn = [sys.executable, "-m", "uvicorn", "--fd={fd}", "--workers=2", "web_app:asgi"]

    # Each worker imports the application for itself.
    expect("register, register: 2 registries", uvicorn)
    expect("register, verify: 1 registry", uvicorn, TEAM)
    # The process that starts the workers imports the operators first.
    expect("verify, verify: 1 registry", [sys.executable, "uvicorn_main.py", "{fd}"])
