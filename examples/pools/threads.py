"""Threads: they share the interpreter that registers, so there is nothing to verify in them."""

from concurrent.futures import ThreadPoolExecutor

from word_ops import LINES, job

import mdispatch as md

if __name__ == "__main__":
    with ThreadPoolExecutor(2, initializer=md.initializer("word_ops")) as pool:
        answers = list(pool.map(job, LINES))
    print(answers)
    assert answers == [("register", n) for n in (5, 5, 4, 3)]
