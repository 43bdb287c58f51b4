"""gunicorn: who registers, as it is started, and what makes one registry of it."""

import sys

from ask_server import TEAM, expect

if __name__ == "__main__":
    gunicorn = [sys.executable, "-m", "gunicorn", "--bind", "fd://{fd}", "web_app"]

    # Each worker imports the application for itself.
    expect("register, register: 2 registries", [*gunicorn, "--workers=2"])
    expect("register, verify: 1 registry", [*gunicorn, "--workers=2"], TEAM)
    # The arbiter imports it, then forks.
    expect("verify, verify: 1 registry", [*gunicorn, "--workers=2", "--preload"])
    expect("verify, verify: 1 registry", [*gunicorn, "--config=gunicorn_conf.py"])
