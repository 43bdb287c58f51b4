"""The command ``mdispatch``, also ``python -m mdispatch``.

The command line needs packages that nothing else here does. Where one is missing, this says so,
instead of a traceback.
"""

from __future__ import annotations

import sys

from . import __version__


def main() -> None:
    """Runs the command line. Ends the process with its exit status."""
    if sys.argv[1:] == ["--version"]:  # needs none of them
        print(f"mdispatch {__version__}")
        return
    try:
        from .cli.app import app

        app(prog_name="mdispatch")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("click", "rich", "jinja2"):
            raise
        print(
            f"mdispatch: the command line needs {missing!r}, which is not installed.\n"
            "Install it together with mdispatch: python -m pip install 'mdispatch[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
