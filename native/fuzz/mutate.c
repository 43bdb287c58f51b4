/* mutate.c - a mutator that knows ops: it repeats, drops, moves and changes whole ones, and leaves
 * half of the work to libFuzzer's own.
 */
#include "ops.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *other,
                                 size_t other_size, uint8_t *out, size_t max_size,
                                 unsigned int seed);

static uint64_t state;
static uint32_t draw(void) { /* splitmix64 */
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(z >> 32);
}

static struct op draw_op(void) {
    struct op op = {(uint8_t)draw(), (uint8_t)draw(), (uint16_t)draw(), draw()};
    uint32_t how = draw();
    if (how & 1) op.c %= 1024;
    if (how & 2) op.b %= 256;
    return op;
}

static void change(struct op *op) {
    switch (draw() % 6) {
    case 0:
        op->what = (uint8_t)draw();
        break;
    case 1:
        op->a = (uint8_t)(draw() % 2 ? op->a ^ 1u << draw() % 8 : draw());
        break;
    case 2:
        op->b = (uint16_t)(draw() % 2 ? op->b + draw() % 9 - 4 : draw());
        break;
    case 3:
        op->c ^= 1u << draw() % 32;
        break;
    case 4:
        op->c += draw() % 9 - 4;
        break;
    default:
        *op = draw_op();
    }
}

static size_t mutate(struct op *ops, size_t n, size_t max) {
    size_t at = n ? draw() % n : 0, to = n ? draw() % n : 0;
    switch (n ? draw() % 8 : 0) {
    case 0: /* a new one */
    case 1:
        if (n == max) break;
        memmove(ops + at + 1, ops + at, (n - at) * OP_SIZE);
        ops[at] = draw_op();
        return n + 1;
    case 2: /* one less */
        memmove(ops + at, ops + at + 1, (n - at - 1) * OP_SIZE);
        return n - 1;
    case 3: /* one again, changed */
        if (n == max) break;
        ops[n] = ops[at];
        change(&ops[n]);
        return n + 1;
    case 4: {
        struct op op = ops[at];
        ops[at] = ops[to];
        ops[to] = op;
        return n;
    }
    default:
        break;
    }
    change(&ops[at]);
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    static struct op ops[MAX_OPS];
    state = seed;
    if (draw() % 4 == 0 || max_size < 1 + OP_SIZE) return LLVMFuzzerMutate(data, size, max_size);
    size_t max = (max_size - 1) / OP_SIZE, n = size ? (size - 1) / OP_SIZE : 0;
    if (max > MAX_OPS) max = MAX_OPS;
    if (n > max) n = max;
    if (size == 0) data[0] = (uint8_t)draw();
    if (n) memcpy(ops, data + 1, n * OP_SIZE);
    if (draw() % 16 == 0) data[0] = (uint8_t)draw();
    for (uint32_t times = 1 + draw() % 3; times; times--) n = mutate(ops, n, max);
    if (n) memcpy(data + 1, ops, n * OP_SIZE);
    return 1 + n * OP_SIZE;
}

/* The beginning of one program, then the end of the other. */
size_t LLVMFuzzerCustomCrossOver(const uint8_t *one, size_t one_size, const uint8_t *other,
                                 size_t other_size, uint8_t *out, size_t max_size,
                                 unsigned int seed) {
    state = seed;
    size_t n = one_size ? (one_size - 1) / OP_SIZE : 0,
           k = other_size ? (other_size - 1) / OP_SIZE : 0;
    if (max_size < 1 || !one_size || !other_size) return 0;
    size_t first = draw() % (n + 1), from = draw() % (k + 1), max = (max_size - 1) / OP_SIZE;
    if (first > max) first = max;
    if (k - from > max - first) k = from + max - first;
    out[0] = one[0];
    memcpy(out + 1, one + 1, first * OP_SIZE);
    memcpy(out + 1 + first * OP_SIZE, other + 1 + from * OP_SIZE, (k - from) * OP_SIZE);
    return 1 + (first + k - from) * OP_SIZE;
}
