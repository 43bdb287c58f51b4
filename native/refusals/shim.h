/* shim.h - how a program that runs under the shim tells it what to refuse. shim.c says what it is.
 *
 * The functions are found with dlsym(RTLD_DEFAULT, ...), since whoever calls them is not linked to it.
 */
#ifndef MD_SHIM_H
#define MD_SHIM_H

struct shim_report {
    long calls;  /* made by the library since shim_arm, those that cannot be refused not counted */
    int refused; /* how many of them were refused */
    int kinds;   /* in how many ways the call asked for can be refused */
    int error;   /* the errno of the refusal; 0: it did less than it was asked to */
    const char *call; /* its name, "" while none was refused */
};

/* From now on the calls are counted, and the nth one (from 1 on; 0: none) is refused in the way
 * `kind` (from 0 on); with `on`, all later calls of this name as well, except for what says "again"
 * (EINTR, EAGAIN, ETIMEDOUT): repeated for ever, that is no refusal but a halt. */
void shim_arm(long nth, int kind, int on);

/* No more is refused or counted. */
void shim_disarm(struct shim_report *report);

/* Between these two nothing of this thread is refused or counted either. */
void shim_pause(void);
void shim_go_on(void);

/* Whether something was refused since shim_arm. */
int shim_has_refused(void);

#endif
