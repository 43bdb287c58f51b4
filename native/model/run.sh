#!/bin/sh
# Runs the model: `run.sh FOLDER short|long`. Short: any one process can be killed anywhere, and the
# variants that must fail. Long: all can be killed anywhere. A search that is not complete is a
# failure.
set -u
out=$1/model how=${2:-short} passed=0 failed=0
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v spin >/dev/null; then
    echo "#### MODEL SKIPPED, NOTHING WAS CHECKED: no spin here (apt-get install spin) ####"
    exit 0
fi
mkdir -p "$out" && cd "$out" || exit 2

model=registry.pml ignore= # of the searches below
# verify holds|fails TITLE FLAGS...
verify() {
    should=$1 title=$2
    shift 2
    rm -f pan pan.* ./*.trail
    spin -a "$@" "$here/$model" >spin.log 2>&1 || { cat spin.log; exit 2; }
    # What fails is found soon: there the compiler would take longer than the search.
    optimize=-O2
    [ "$should" = holds ] || optimize=-O0
    ${CC:-cc} $optimize -w -DSAFETY -DCOLLAPSE -DNOFAIR -DMEMLIM=20000 -o pan pan.c || exit 2
    ./pan $ignore -m1000000 -w26 >pan.log 2>&1
    states=$(awk '/ states, stored/ { printf "%.0f", $1 }' pan.log)
    memory=$(sed -n 's/^ *\([0-9.]*\).*total actual memory.*/\1/p' pan.log)
    seconds=$(sed -n 's/^pan: elapsed time \([^ ]*\) .*/\1/p' pan.log)
    found=holds
    grep -q 'Search not completed\|max search depth\|out of memory' pan.log && found=unfinished
    grep -q 'errors: [1-9]' pan.log && found=fails
    echo "$title: $found, $states states, $memory MB, $seconds s ($*)"
    if [ $found = "$should" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "#### $title should be: $should ####"
    fi
}

verify fails "waiters sleep without a slice" -DWRONG=1
verify fails "event words raised before the commit" -DWRONG=2
verify fails "a waiter looks before it prepares" -DWRONG=3
verify fails "the lock is waited for without a slice" -DWRONG=4 -DJOINS=1
verify fails "recovery does not raise the sequence" -DWRONG=5 -DJOINS=1 -DMORTAL=2
verify fails "the sequence is raised before the commit" -DWRONG=6 -DMORTAL=0
verify fails "who the lease woke does not wake the rest" -DWRONG=7
verify fails "recovery keeps what is not linked" -DWRONG=8
verify fails "nothing is repaired" -DWRONG=9
verify holds "nobody is killed, main strikes" -DMAIN=1 -DMORTAL=0
verify holds "nobody is killed, main leaves" -DMAIN=2 -DMORTAL=0
verify fails "waiters sleep without a slice, one dies" -DWRONG=1 -DDEATHS=1
verify fails "who the lease woke does not wake the rest, one dies" -DWRONG=7 -DDEATHS=1
verify fails "nothing is repaired, one dies" -DWRONG=9 -DDEATHS=1
verify holds "any one of all can be killed" -DDEATHS=1
verify fails "nobody looks whether a repair is owed" -DWRONG=10 -DBLIND=4 -DDEATHS=1 -DWITHOUT=3
verify holds "any one can be killed, one cannot repair" -DBLIND=4 -DDEATHS=1 -DWITHOUT=3
if [ "$how" = long ]; then
    # One of these covers any four deaths; and after four deaths the fifth can harm nobody.
    verify holds "all but W2 can be killed" -DMORTAL=15
    verify holds "all but W1 can be killed" -DMORTAL=23
    verify holds "all but W0 can be killed" -DMORTAL=27
    verify holds "all but the registrar can be killed" -DMORTAL=29
    verify holds "all but the main member can be killed" -DMORTAL=30
    verify holds "any one of all can be killed, main strikes" -DMAIN=1 -DDEATHS=1
    verify holds "any one of all can be killed, main leaves" -DMAIN=2 -DDEATHS=1
fi

# Each protocol on memory in which stores come late and loads are old (weak.h).
model=weak_events.pml
verify holds "event words, weak memory"
verify fails "a waiter prepares without acquire" -DWRONG=1
verify fails "a committer rings without release" -DWRONG=2
verify fails "a committer rings only if a load says so" -DWRONG=3
verify fails "a waiter looks before it prepares, weak memory" -DWRONG=4
model=weak_readers.pml
verify holds "readers without a lock, weak memory"
verify fails "no release fence after a raise" -DWRONG=1
verify fails "no acquire fence before the comparison" -DWRONG=2
verify fails "a head published without release" -DWRONG=3
verify fails "a reader does not compare" -DWRONG=4
model=weak_lease.pml
verify holds "the lease, weak memory"
verify fails "a slot published without release" -DWRONG=1
verify fails "a lease read without acquire" -DWRONG=2
verify fails "a waiter looks before it reads the lease" -DWRONG=3
verify fails "a lease marked by a load and a store" -DWRONG=4
verify fails "who is woken by the death does not wake the rest, weak memory" -DWRONG=5
model=weak_index.pml
verify holds "the index, weak memory"
verify fails "an old array that serves again without a fence" -DWRONG=1
verify fails "a slot loaded without acquire" -DWRONG=2
verify fails "a slot published without release" -DWRONG=3
verify fails "an array published without release" -DWRONG=4
verify fails "a reader does not look whether the array was replaced" -DWRONG=5
verify holds "an entry that moves, weak memory" -DMOVES=1
verify fails "an old slot that serves again without a fence" -DMOVES=1 -DWRONG=1
verify fails "a reader does not look whether entries have moved" -DMOVES=1 -DWRONG=5
verify fails "moves raised without release" -DMOVES=1 -DWRONG=6

model=names.pml ignore=-E # its holder of a word waits for what never happens
verify fails "the version is not raised when a name is given back" -DWRONG=1 -DWHO=1
verify fails "moves in the index are not raised" -DWRONG=2
verify fails "a reader does not compare the moves" -DWRONG=3
verify fails "a reader reads the version after the name" -DWRONG=4 -DWHO=1
verify fails "the version is reset for the next name" -DWRONG=5 -DWHO=1
verify fails "a repair leaves the index as it is" -DWRONG=6
verify fails "a repair does not raise the moves" -DWRONG=7
verify holds "names are given back, a reader of one that stays" -DWHO=0
verify holds "names are given back, a reader of one that goes" -DWHO=1
model=choices.pml ignore=
verify fails "who has claimed does not look once more for the choice" -DWRONG=1 -DASKERS=10 -DDEATHS=0
verify fails "who decides releases its claim before it registers" -DWRONG=2 -DASKERS=10 -DDEATHS=0
verify fails "who raises does not release its claim" -DWRONG=3 -DASKERS=10 -DDEATHS=0
verify fails "the end of a claim rings nobody" -DWRONG=4 -DASKERS=10 -DDEATHS=0
verify fails "who waits for a choice does not watch who decides" -DWRONG=5 -DASKERS=10
verify fails "who hears of the decider's death does not sweep" -DWRONG=6 -DASKERS=10
verify fails "a turn ends before its claim is released" -DWRONG=7 -DASKERS=14 -DDEATHS=0
verify fails "a turn that ends has no mark" -DWRONG=8 -DASKERS=14 -DDEATHS=0
verify fails "a choice may be made twice" -DWRONG=9 -DASKERS=8 -DDEATHS=0 -DLOADS=1
verify holds "a choice, two workers ask" -DASKERS=10
verify holds "a choice, two threads of a worker and another ask, nobody is killed" -DASKERS=14 -DDEATHS=0
if [ "$how" = long ]; then
    verify holds "a choice, two threads of a worker and another ask" -DASKERS=14
    verify holds "a choice, the main member and two workers ask" -DASKERS=11
    verify holds "a choice that is loaded meanwhile" -DASKERS=10 -DLOADS=1
fi
model=agree.pml
verify fails "a member looks before it asks" -DWRONG=1 -DASKS=1 -DDEATHS=0
verify fails "a dead member refuses" -DWRONG=2 -DASKS=1
verify fails "a member that is refused keeps its registration" -DWRONG=3 -DASKS=1 -DDEATHS=0
verify fails "a member keeps its earlier value until it has the next" -DWRONG=4
verify fails "who waits takes the sequence after it has looked" -DWRONG=5 -DAMONG=2 -DASKS=1 -DDEATHS=0
verify fails "who is refused leaves no mark" -DWRONG=6 -DAMONG=2 -DASKS=1 -DDEATHS=0
verify holds "an agreement" -DASKS=1
verify holds "an agreement among two" -DASKS=1 -DAMONG=2
if [ "$how" = long ]; then
    verify holds "an agreement, each asks twice, nobody is killed" -DDEATHS=0
fi
model=steps.pml
verify holds "a step leaves its window"
verify fails "a step ends before the floor is raised" -DWRONG=1
verify fails "a member looks at the floor before it registers a step" -DWRONG=2
verify fails "nobody looks at the floor after it has registered a step" -DWRONG=3
verify fails "a member that compares does not look at the floor" -DWRONG=4
model=roll_call.pml
verify holds "a roll call"
verify holds "a roll call of three, one has a deadline" -DEXPECTED=3 -DPATIENT=3
verify holds "a roll call beside another round, one has a deadline" -DOTHERS=1 -DDEATHS=0 -DPATIENT=6
verify fails "a verdict may be published beside another one" -DWRONG=1
verify fails "a member takes the verdict of those that are gone" -DWRONG=2 -DDEATHS=2
verify fails "a verdict of no account is removed" -DWRONG=3
verify fails "who waits for the others takes the sequence after it has looked" -DWRONG=4 -DPATIENT=7
verify fails "a member that is not counted keeps its post" -DWRONG=5
verify fails "a verdict of another round that somebody needs is removed" -DWRONG=6 -DOTHERS=1
if [ "$how" = long ]; then
    verify holds "a roll call, two can be killed" -DDEATHS=2
    verify holds "a roll call without deadlines" -DPATIENT=7
    verify holds "a roll call beside another round, nobody is killed" -DOTHERS=1 -DDEATHS=0
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
