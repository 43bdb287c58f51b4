"""An existing PyTorch job whose ranks prove at their start that they registered the same.

The operators are in torch_ops.py, which stays as it is. This program registers them, and starts
three ranks; the last one has a newer version of the file.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import mdispatch as md


def begin() -> None:
    """What a rank does before its work."""
    md.torch.watch(timeout=60)
    md.warm_up("torch_ops", timeout=60)


def rank() -> None:
    try:
        begin()
    except md.errors.WarmUpError as error:
        print(error)
        sys.exit(1)
    print("the same operators")


def main() -> None:
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed here")
        return
    begin()
    ranks = [
        subprocess.run(
            [sys.executable, __file__, "rank"],
            env={**os.environ, "TORCH_OPS_VERSION": version},
            capture_output=True,
            text=True,
            check=False,
        )
        for version in ("1", "1", "2")
    ]
    for number, each in enumerate(ranks, 1):
        print(f"rank {number}: {each.stdout}{each.stderr}")
    assert [each.returncode for each in ranks] == [0, 0, 1]
    assert "float steps" in ranks[2].stdout
    assert "int steps" in ranks[2].stdout
    assert "engine::scale at register_fake" in ranks[2].stdout


if __name__ == "__main__":
    rank() if sys.argv[1:] == ["rank"] else main()
