"""The benchmarks that need the repository: ``mdispatch bench``, started here, runs them beside its
own. ``python -m benchmarks`` is the same.
"""
