"""uvicorn with two workers: the process that starts them registers, each worker verifies when it
imports uvicorn_app.
"""

import os
import sys

if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    if len(sys.argv) > 1:
        import uvicorn

        import mdispatch as md

        md.warm_up(["word_ops"])
        uvicorn.run("uvicorn_app:asgi", workers=2, fd=int(sys.argv[1]))
    else:
        from ask_server import ask

        answers = ask([sys.executable, __file__, "{fd}"])
        print(answers)
        assert answers == [("verify", n) for n in (5, 5, 4, 3)]
