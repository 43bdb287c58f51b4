"""The command ``mdispatch report``: all operators of a registry as one page of HTML."""
