"""The benchmarks, for people who change mdispatch. They are no part of the package.

``python -m benchmarks`` runs all jobs, ``python -m benchmarks.own`` one. Each job is a script that
pyperf measures (job.py).
"""
