"""gunicorn's configuration: the arbiter registers before it forks its workers, each of which
verifies. ``gunicorn -c gunicorn_conf.py web_app``
"""

import mdispatch as md

workers = 2


def on_starting(server):
    md.warm_up(["web_ops"])


def post_worker_init(worker):
    md.warm_up(["web_ops"])
