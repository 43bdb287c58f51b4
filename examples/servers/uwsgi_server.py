"""uWSGI: who registers, as it is started, and what makes one registry of it."""

import sys

from ask_server import HERE, TEAM, expect

if __name__ == "__main__":
    uwsgi = ["uwsgi", "--plugin=python3", f"--virtualenv={sys.prefix}", f"--chdir={HERE}"]
    uwsgi += ["--http-socket=fd://{fd}", "--master", "--die-on-term", "--processes=2", "--need-app"]
    one = [*uwsgi, "--wsgi-file=web_app.py"]
    several = [*uwsgi, "--manage-script-name", "--mount=/a=web_app.py", "--mount=/b=web_app.py"]

    # The master process imports the application, then forks its workers.
    expect("verify, verify: 1 registry", one)
    # Each application but the first has a sub-interpreter.
    expect("verify, verify: 1 registry", several, paths=("/a", "/b"))
    # Each worker imports it for itself.
    expect("register, register: 2 registries", [*one, "--lazy-apps"])
    expect("register, verify: 1 registry", [*one, "--lazy-apps"], TEAM)
    expect("register, verify: 1 registry", [*several, "--lazy-apps"], TEAM, paths=("/a", "/b"))
