"""The command ``mdispatch``: one module for each command, and what they share.

Nothing below this package imports from it, and nothing else may import click or rich.
"""
