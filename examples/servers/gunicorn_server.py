"""gunicorn with two workers that it forks, see gunicorn_conf.py."""

import os
import sys

from ask_server import ask

if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    gunicorn = [sys.executable, "-m", "gunicorn", "-c", "gunicorn_conf.py"]
    answers = ask([*gunicorn, "--bind", "fd://{fd}", "web_app:wsgi"])
    print(answers)
    assert answers == [("verify", n) for n in (5, 5, 4, 3)]
