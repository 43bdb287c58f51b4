"""Checks the messages of commits: a subject of at most 72 characters, and a body that says why.

Asked about are the commits of HEAD since this rule was made, as far as the clone has them.
"""

from __future__ import annotations

import subprocess
import sys

SINCE = "2026-11-25T02:00:00+0000"
LONGEST = 72


def faults(message: str) -> list[str]:
    subject, _, body = message.partition("\n")
    found = []
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters, {LONGEST} are allowed")
    if not subject[:1].isupper() or subject.endswith("."):
        found.append("the subject begins with a capital letter and ends without a full stop")
    if not body.startswith("\n") or not body.strip():
        found.append("there is no body, after an empty line, that says why")
    return found


def main() -> int:
    command = ["git", "-C", sys.argv[1], "log", f"--since={SINCE}", "--no-merges", "-z"]
    told = subprocess.run([*command, "--format=%h %B"], check=True, capture_output=True, text=True)
    checked = failed = 0
    for commit in filter(None, told.stdout.split("\0")):
        name, _, message = commit.strip().partition(" ")
        wrong = faults(message)
        checked += 1
        failed += bool(wrong)
        for fault in wrong:
            print(f"{name} {message.splitlines()[0]}: {fault}")
    print(f"{checked - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
