#!/bin/sh
# Checks that a library calls just what the file lists (nm -D comes from standard input). The file
# has one name a line, then whether the shim refuses it or why not.
sed 's/@.*//' | awk -v list="$1" '
    BEGIN { while ((getline line < list) > 0) if (line !~ /^#/ && split(line, w, " ")) {
        listed[w[1]] = line ~ /no system call/ ? "maybe" : "yes"
    } }
    $1 == "U" && !($2 in listed) { print $2 " is called and not in " list; bad = 1 }
    $1 == "U" { called[$2] = 1 }
    END {
        for (name in listed) if (listed[name] == "yes" && !(name in called)) { print name " is in " list " and not called"; bad = 1 }
        exit bad
    }'
