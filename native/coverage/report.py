"""What of native/core the C tests have not run, by gcov's own figures.

    python3 coverage/report.py FOLDER      where the objects of a --coverage build are

A line is covered when one of its copies ran, a branch (gcov's: one arc of a conditional jump of
the code as gcc makes it without optimisation) when it was taken in one of its copies: a function of
a header is compiled into several objects. Shown are, for each file, lines and branches, then each
line that did not run and each line with a branch that was not taken (how often each branch was),
with its source.

What cannot be reached is left out by a comment on the line: `/* coverage: unreachable, reason */`
leaves out the line, `/* coverage: one-sided, reason */` its branches that are never taken. Both are
counted and listed, so that nobody forgets them; one on a line that needs none is an error. Exit
code 1 under 100 %.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

MARK = re.compile(r"/\* coverage: (unreachable|one-sided), (.+?) \*/")
CORE = Path(__file__).resolve().parent.parent / "core"


def measured(folder: Path) -> tuple[dict, dict]:
    """Counts by (file, line), and by (file, line, function, n-th branch)."""
    lines, branches = defaultdict(int), defaultdict(int)
    for notes in sorted(folder.rglob("*.gcno")):
        out = subprocess.run(
            ["gcov", "--json-format", "--stdout", "--branch-probabilities", notes.name],
            cwd=notes.parent,
            check=True,
            capture_output=True,
        ).stdout
        for data in json.loads(out)["files"]:
            path = (CORE.parent / data["file"]).resolve()
            if not path.is_relative_to(CORE):
                continue
            name = str(path.relative_to(CORE))
            for line in data["lines"]:
                at = (name, line["line_number"])
                lines[at] += line["count"]
                function = line.get("function_name", "")
                for n, branch in enumerate(line["branches"]):
                    branches[(*at, function, n)] += branch["count"]
    return lines, branches


def main(folder: Path) -> int:
    lines, branches = measured(folder)
    if not lines:
        print(f"{folder}: nothing was measured")
        return 1
    bad, left_out, table = [], [], []
    totals = [0, 0, 0, 0]
    for name in sorted({at[0] for at in lines}):
        source = (CORE / name).read_text().splitlines()
        marks = {n: m for n, text in enumerate(source, 1) if (m := MARK.search(text))}
        used = set()
        missed = sorted(n for f, n in lines if f == name and not lines[f, n])
        arcs = sorted(at for at in branches if at[0] == name)
        untaken = [at for at in arcs if not branches[at]]
        for n in list(missed):
            if n in marks and marks[n][1] == "unreachable":
                used.add(n)
                missed.remove(n)
        for at in list(untaken):
            if at[1] in marks:
                used.add(at[1])
                untaken.remove(at)
        figures = [sum(f == name for f, _ in lines), len(missed), len(arcs), len(untaken)]
        totals = [a + b for a, b in zip(totals, figures, strict=True)]
        table.append((name, *figures))
        for n in sorted({*missed, *(at[1] for at in untaken)}):
            if n in missed:
                why = "not run"
            else:
                here = [branches[at] for at in arcs if at[1] == n]
                why = f"branches {' '.join(map(str, here))}"
            bad.append(f"{name}:{n}: {why}: {source[n - 1].strip()}")
        for n, mark in marks.items():
            if n in used:
                left_out.append(f"{name}:{n}: {mark[1]}: {mark[2]}")
            else:
                bad.append(f"{name}:{n}: marked {mark[1]}, but it is not")
    print("| file | lines | not run | branches | not taken |\n|---|---|---|---|---|")
    for row in [*table, ("all", *totals)]:
        print("| " + " | ".join(map(str, row)) + " |")
    print(f"\nleft out by a mark: {len(left_out)}", *left_out, sep="\n")
    print(f"\nnot covered: {len(bad)}", *bad, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
