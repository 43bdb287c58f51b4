"""Tests have bytecode, as users have it. Import this before the package.

Where the variable PYTHONDONTWRITEBYTECODE is set, each process that a test starts compiles the
package again, which doubles what the test costs.
"""

from __future__ import annotations

import os
import sys

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
