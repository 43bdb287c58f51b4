/* Has no block of its own, and needs a library that has one. */
extern int runs;
int *use(void);
int *use(void) {
    return &runs;
}
