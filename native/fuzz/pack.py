"""A corpus as one text file, an input a line in hexadecimal digits, and as the folder of files that
libFuzzer works on.

    python pack.py unpack FILE... FOLDER
    python pack.py pack FOLDER FILE
"""

import hashlib
import sys
from pathlib import Path


def inputs_of(file: Path) -> list[bytes]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [bytes.fromhex(line) for line in lines if line and not line.startswith("#")]


def unpack(files: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        for data in inputs_of(file):
            (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def pack(folder: Path, file: Path) -> None:
    inputs = sorted({path.read_bytes() for path in folder.iterdir()}, key=lambda d: (len(d), d))
    file.write_text("".join(f"{data.hex()}\n" for data in inputs if data))
    print(f"{file}: {len(inputs)} inputs, {file.stat().st_size} bytes")


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    paths = [Path(argument) for argument in rest]
    if command == "unpack":
        unpack(paths[:-1], paths[-1])
    else:
        pack(*paths)
