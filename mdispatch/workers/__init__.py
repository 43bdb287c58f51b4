"""Sub-interpreters and pools of them, warming up workers, the pytest plugin, OpenTelemetry spans.

The package itself exports nothing: the public names of its modules are names of mdispatch.
"""
