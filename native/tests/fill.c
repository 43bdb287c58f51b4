/* fill NAME: takes every process slot that a registry has left, by a process each, says "full", and
 * then ends one of them for each line that it reads, saying "room". */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../core/contract/contract.h"

static md_registry reg;

/* In the child: whether it is a member, told by a byte. */
static void join_and_stay(int tell) {
    uint64_t member;
    uint32_t role;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char joined = md_join(reg, 0, &member, &role) == 0 ? 'j' : 'n';
    while (write(tell, &joined, 1) == 1 && joined == 'j') pause();
    _exit(0);
}

int main(int argc, char **argv) {
    static pid_t pid[MD_MAX_PROCESSES];
    char answer = 'j', line[16];
    int told[2], n = 0;
    if (argc != 2 || pipe(told) || md_attach(argv[1], md_now() + 5000000000, &reg)) {
        fprintf(stderr, "usage: fill NAME, of a registry that is there\n");
        return 2;
    }
    while (answer == 'j') {
        if ((pid[n] = fork()) == 0) join_and_stay(told[1]);
        if (pid[n] < 0 || read(told[0], &answer, 1) != 1) return 1;
        n++;
    }
    puts("full");
    fflush(stdout);
    for (n -= 2; n >= 0 && fgets(line, sizeof line, stdin); n--) {
        kill(pid[n], SIGKILL);
        waitpid(pid[n], NULL, 0);
        puts("room");
        fflush(stdout);
    }
    return 0;
}
