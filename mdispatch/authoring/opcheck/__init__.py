"""Whether an operator keeps the promises of its schema: ``mdispatch.opcheck``.

``check`` runs the tests, ``schema`` and ``fake`` are one test each, and ``values`` compares values.
"""
