"""The kinds of registrations of the package, by their numbers: without the toy's, which a test of
the same process may have added.
"""

from __future__ import annotations

from mdispatch.facts.kinds import Kind
from mdispatch.facts.registration import kinds

__all__ = ["OURS"]

OURS: dict[int, Kind] = {
    kind.number: kind for kind in kinds() if type(kind).__module__.startswith("mdispatch.")
}
