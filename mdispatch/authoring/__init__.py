"""Making operators: custom operators, fakes, gradients, schemas from annotations, checks.

The package itself exports nothing: users find the public names of its modules in mdispatch.
"""
