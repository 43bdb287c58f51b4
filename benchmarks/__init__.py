"""The benchmarks for people who change mdispatch. They are no part of the package.

``mdispatch bench``, started in a checkout of the repository, finds them here and runs them beside
its own jobs. ``python -m benchmarks`` is the same command.
"""
