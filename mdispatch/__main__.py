"""The command ``mdispatch``, also ``python -m mdispatch``.

The command line needs two packages that nothing else here does. Where they are missing, this says
so, instead of a traceback.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line. Ends the process with its exit status."""
    try:
        from .cli import app_for

        app = app_for(sys.argv[1:])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "mdispatch"):
            raise
        print(
            f"mdispatch: the command line needs {missing!r}, which is not installed.\n"
            "Install it together with mdispatch: python -m pip install 'mdispatch[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        app(prog_name="mdispatch")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
