"""One sub-interpreter at a time, by concurrent.interpreters of Python 3.14."""

import sys
from concurrent import interpreters

from word_ops import LINES, job

import mdispatch as md

if __name__ == "__main__":
    interpreter = interpreters.create()
    interpreter.call(md.warm_up, ["word_ops"], sys.path)
    answers = [interpreter.call(job, line) for line in LINES]
    interpreter.close()
    print(answers)
    assert answers == [("verify", n) for n in (5, 5, 4, 3)]
