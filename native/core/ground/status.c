/* status.c - the words for each status, and the status of a system call that failed. Python builds
 * its errors from the code, not from the words.
 */
#include <errno.h>

#include "ground.h"

static const char *const WORDS[] = {
    [0] = "ok",
    [-MD_EINVAL] = "invalid argument",
    [-MD_ENAME] = "not a registry's name or address",
    [-MD_ECLOSED] = "closed",
    [-MD_EDIED] = "the main member died",
    [-MD_ETIMEDOUT] = "timed out",
    [-MD_EINTR] = "interrupted by a signal",
    [-MD_ECANCELED] = "cancelled",
    [-MD_EEXIST] = "exists already",
    [-MD_ENOENT] = "not found",
    [-MD_EROLE] = "this member may not register or strike this",
    [-MD_EFULL] = "the registry is full",
    [-MD_EMEMBERS] = "too many members",
    [-MD_ETOOLONG] = "too long",
    [-MD_ENOBUFS] = "the buffer is too small",
    [-MD_EFORMAT] = "not a registry",
    [-MD_EVERSION] = "a registry of another version or build",
    [-MD_EBOOT] = "a registry from before the last boot",
    [-MD_ENAMESPACE] = "a registry of another PID namespace",
    [-MD_EOWNER] = "a registry of another user, or not with its rights",
    [-MD_ENOTFILE] = "not a regular file",
    [-MD_EDAMAGED] = "the registry is damaged",
    [-MD_ELOCK] = "the lock's holder does not let go",
    [-MD_EHANDLES] = "too many registries are open in this process",
    [-MD_EELECTED] = "the caller is the registrar",
    [-MD_EFOLDER] = "no folder for named registries, see MDISPATCH_FOLDER",
    [-MD_ELOST] = "this process has closed the registry's descriptor",
    [-MD_EREOPEN] = "this child of a fork may not open the registry anew",
    [-MD_EBUSY] = "another process keeps the folder for named registries locked",
    [-MD_EEDITIONS] = "too many editions of this name are alive",
    [-MD_EBRACES] = "an address with braces, which only Python replaces",
};

const char *md_status_text(int status) {
    if (status <= MD_ESYS) return "a system call failed";
    if (status > 0 || -status >= (int)(sizeof WORDS / sizeof *WORDS)) return "unknown status";
    return WORDS[-status];
}

int md_status_errno(int status) {
    return status < MD_ESYS ? MD_ESYS - status : 0;
}

int md_abi(void) {
    return MD_ABI;
}

int md__sys(void) {
    return MD_ESYS - errno;
}
