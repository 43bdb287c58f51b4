"""multiprocessing.Pool with each start method.

The registry is there before the first pool is: ``from word_ops import`` above has made it.
"""

import multiprocessing

from word_ops import LINES, job, role_of_processes

import mdispatch as md

if __name__ == "__main__":
    for method in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context(method)
        with context.Pool(2, initializer=md.initializer("word_ops")) as pool:
            answers = pool.map(job, LINES)
        print(method, answers)
        assert answers == [(role_of_processes(), n) for n in (5, 5, 4, 3)]
