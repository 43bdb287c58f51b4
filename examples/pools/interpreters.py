"""Sub-interpreters: InterpreterPool is the standard library's InterpreterPoolExecutor from Python
3.14 on, and serves in the same way from 3.11 on (with GILs of their own from 3.12 on).
"""

from word_ops import LINES, job

import mdispatch as md

if __name__ == "__main__":
    with md.InterpreterPool(2, initializer=md.initializer("word_ops")) as pool:
        answers = list(pool.map(job, LINES))
    print(answers)
    assert answers == [("verify", n) for n in (5, 5, 4, 3)]
