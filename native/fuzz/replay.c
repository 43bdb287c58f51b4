/* replay.c - runs the kept inputs of a fuzz target without a fuzzer, with any compiler: a line of a
 * file is an input in hexadecimal digits, or a comment. A line that fails ends the program, and its
 * place has been printed by then.
 */
#include <signal.h>
#include <unistd.h>

#include "ops.h"

enum { LONGEST = 1 + MAX_OPS * OP_SIZE, PATIENCE_S = 20 };

static char place[256];

static void failed(int number) {
    static const char words[] = " fails\n";
    signal(number, SIG_DFL);
    if (write(STDERR_FILENO, place, strlen(place)) < 0) _exit(2);
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0) _exit(2);
    raise(number);
}

static size_t from_hex(const char *line, uint8_t *out) {
    size_t n = 0;
    for (; n < LONGEST && line[2 * n] > ' '; n++) {
        const char two[3] = {line[2 * n], line[2 * n + 1]};
        out[n] = (uint8_t)strtoul(two, NULL, 16);
    }
    return n;
}

static int replay(const char *path) {
    static char line[2 * LONGEST + 3];
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        exit(1);
    }
    int count = 0;
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        if (line[0] == '#' || line[0] == '\n') continue;
        snprintf(place, sizeof place, "%s:%d", path, number);
        alarm(PATIENCE_S); /* none takes a hundredth of it */
        uint8_t *input = malloc(LONGEST);
        MUST(input);
        LLVMFuzzerTestOneInput(input, from_hex(line, input));
        free(input);
        count++;
    }
    fclose(file);
    return count;
}

int main(int argc, char **argv) {
    static const int numbers[] = {SIGABRT, SIGSEGV, SIGBUS, SIGALRM};
    int count = 0;
    for (int i = 0; i < 4; i++) signal(numbers[i], failed);
    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) count += replay(argv[i]);
    printf("%d kept inputs replayed\n", count);
    return count ? 0 : 1;
}
