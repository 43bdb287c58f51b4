"""Processes: ProcessPoolExecutor, by whichever start method is the default or is asked for."""

from concurrent.futures import ProcessPoolExecutor

from word_ops import LINES, job, role_of_processes

import mdispatch as md

if __name__ == "__main__":
    with ProcessPoolExecutor(2, initializer=md.initializer("word_ops")) as pool:
        answers = list(pool.map(job, LINES))
    print(answers)
    assert answers == [(role_of_processes(), n) for n in (5, 5, 4, 3)]
