"""A program that becomes a daemon: first that, then the imports. The other way round nobody is left
who registers.
"""

import os
import subprocess
import sys


def become_daemon():
    """As python-daemon does: this process ends, and so does the one that it forks."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def in_time():
    become_daemon()
    import web_ops

    import mdispatch as md

    md.Library("more", "DEF").define("later(int x) -> int")
    print(md.register_or_verify(), web_ops.slug("The Ferry"))


def too_late():
    import web_ops

    import mdispatch as md

    become_daemon()
    try:
        md.Library("more", "DEF")
    except md.errors.RegistrarGoneError as error:
        print("becomes a daemon does so first" in str(error), web_ops.slug("The Ferry"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"in time": in_time, "too late": too_late}[sys.argv[1]]()
    else:
        for way, expected in (("in time", "register the-ferry"), ("too late", "True the-ferry")):
            # The daemon has the pipe, which ends with it.
            done = subprocess.run(
                [sys.executable, __file__, way], stdout=subprocess.PIPE, text=True
            )
            print(way, "->", done.stdout.strip())
            assert done.stdout.strip() == expected
