"""Members that go on with registrations of their own, where others are refused: with
``MDISPATCH_ON_DIFFERENCE=warn`` after each difference, with a warning, and in a registry with
``match="compatible"`` after those that are compatible (matching.py).

Note [Names apart]
~~~~~~~~~~~~~~~~~~
The unit is a name: an operator with all its overloads, whose order decides which one a call gets, a
class, a pattern of a priority, the fallbacks. Once a registration of a name is another one here
than in the registry, the name is *apart* in this interpreter: it is as if the registry had nothing
under it. A registry of its own (registry.py) gets everything that the interpreter registers under
the name from then on, and all that it had verified under it before, and calls compute with that. So
no operator is half one version and half another.

The definition keeps its generation, so that handles which were made before go on to work. Calls of
a name apart go through Python: calls in C read the memory of the shared registry.

A name comes together again when the last registration under it has ended here, as a module is
imported anew: the next registration is verified like any other.
"""
