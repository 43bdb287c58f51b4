"""Several kernels beside each other at one key, each with a provider's name, in an order that users
change: see Note [Providers] in chain.py.
"""
