"""Sub-interpreters and pools of them, warming up workers, the pytest plugin, OpenTelemetry spans.

The room itself exports nothing: the public names of its modules are names of mdispatch.
"""
