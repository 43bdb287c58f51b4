"""multiprocessing.Pool with each start method.

The registry is there before the first pool is: ``from word_ops import`` above has made it.
"""

import multiprocessing

from word_ops import LINES, job

import mdispatch as md

if __name__ == "__main__":
    for method in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(2, initializer=md.initializer("word_ops")) as pool:
            answers = pool.map(job, LINES)
        print(method, answers)
        assert answers == [("verify", n) for n in (5, 5, 4, 3)]
