/* hold NAME: attaches to a registry by name or address, takes its lock, says "held" and waits to be
 * killed. */
#include <stdio.h>
#include <unistd.h>

#include "../core/internal.h"

static int complain(const char *what, int rc) {
    fprintf(stderr, "hold: %s: %s (%d)\n", what, md_status_text(rc), rc);
    return 1;
}

int main(int argc, char **argv) {
    md_registry handle;
    md__reg *reg;
    if (argc != 2) {
        fprintf(stderr, "usage: hold NAME\n");
        return 2;
    }
    int rc = md_attach(argv[1], md_now() + 5000000000, &handle);
    if (rc) return complain("attach", rc);
    rc = md__enter(handle, &reg);
    if (rc == 0) rc = md__lock(reg);
    if (rc) return complain("lock", rc);
    puts("held");
    fflush(stdout);
    for (;;) pause();
}
