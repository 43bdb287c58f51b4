"""Addresses of anonymous registries, as processes put them into their environment."""

from __future__ import annotations

from mdispatch.facts.native import native


def address_of(pid: int, number: int, uuid: str = "0" * 32) -> str:
    """The address of what a process of this boot and PID namespace has open, as a registry's."""
    return f"fd:{pid}:{number}:{uuid}:{native.origin(b'')[1].decode()}"
