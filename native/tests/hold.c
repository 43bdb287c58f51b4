/* hold REGISTRY [NAME]: attaches to a registry by name or address, takes its lock, prints "held" and
 * waits to be killed. With the name of a fact it raises that name's version all the time meanwhile:
 * who reads the name is outrun, as by writers that are too fast, and wants the lock. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../core/contract/contract.h"

static int complain(const char *what, int rc) {
    fprintf(stderr, "hold: %s: %s (%d)\n", what, md_status_text(rc), rc);
    return 1;
}

int main(int argc, char **argv) {
    md_registry handle;
    struct md__node *node = NULL;
    md__reg *reg;
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: hold REGISTRY [NAME]\n");
        return 2;
    }
    int rc = md_attach(argv[1], md_now() + 5000000000, &handle);
    if (rc) return complain("attach", rc);
    rc = md__enter(handle, &reg);
    if (rc == 0) rc = md__lock(reg);
    if (rc) return complain("lock", rc);
    if (argc == 3) {
        size_t len = strlen(argv[2]);
        rc = md__node_find(reg, argv[2], len, md__hash(argv[2], len), &node);
        if (rc) return complain(argv[2], rc);
    }
    puts("held");
    fflush(stdout);
    while (node) md__raise(&node->version);
    for (;;) pause();
}
