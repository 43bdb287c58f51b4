/* shim.h - how a program that runs under the shim tells it what to refuse. shim.c says what it is.
 *
 * The program finds these functions with dlsym(RTLD_DEFAULT, ...), since it is not linked to the
 * shim.
 */
#ifndef MD_SHIM_H
#define MD_SHIM_H

struct shim_report {
    long calls;  /* of the library since shim_arm, without those that cannot be refused */
    int refused; /* how many of them were refused */
    int kinds;   /* in how many ways the refused call can be refused */
    int error;   /* the errno of the refusal; 0: the call did less than it was asked to */
    const char *call; /* the name of the refused call, "" while none was refused */
};

/* From now on the shim counts calls, and refuses the nth (from 1; 0: none) in the way `kind` (from
 * 0). For kind -1 the process gets SIGKILL in place of that call. With `on` it also refuses all later calls of the same name, unless the refusal says "again"
 * (EINTR, EAGAIN, ETIMEDOUT): repeated for ever, that would be a halt and no refusal. */
void shim_arm(long nth, int kind, int on);

/* From now on the shim refuses and counts nothing. */
void shim_disarm(struct shim_report *report);

/* Between these two the shim refuses and counts no call of this thread. */
void shim_pause(void);
void shim_go_on(void);

/* Whether something was refused since shim_arm. */
int shim_has_refused(void);

#endif
