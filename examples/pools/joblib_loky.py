"""joblib: its default backend, loky, takes an initializer like other executors."""

from joblib import Parallel, delayed
from word_ops import LINES, job, role_of_processes

import mdispatch as md

if __name__ == "__main__":
    parallel = Parallel(n_jobs=2, initializer=md.initializer("word_ops"))
    answers = parallel(delayed(job)(line) for line in LINES)
    print(answers)
    assert answers == [(role_of_processes(), n) for n in (5, 5, 4, 3)]
