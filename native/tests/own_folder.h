/* own_folder.h - a folder for named registries that only this program uses.
 *
 * It keeps a run from meeting another run, or this user's own registries, by a name. Tests also
 * lock the folder and take away its rights. It is made before main(); the process that made it
 * removes it at exit(), and children inherit it. A program that is killed leaves it behind. Include
 * this in one file of a program, before anything else of the library is called.
 */
#ifndef MD_TESTS_OWN_FOLDER_H
#define MD_TESTS_OWN_FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OWN_FOLDER "/dev/shm/mdispatch-tests-"

static char own_folder[] = OWN_FOLDER "XXXXXX";
static pid_t own_folder_maker;

static int own_folder_remove_one(const char *path, const struct stat *st, int type,
                                 struct FTW *where) {
    (void)st, (void)type, (void)where;
    remove(path);
    return 0;
}

static void own_folder_remove(void) {
    if (getpid() == own_folder_maker)
        nftw(own_folder, own_folder_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

__attribute__((constructor)) static void own_folder_make(void) {
    const char *given = getenv("MDISPATCH_FOLDER");
    if (given && strncmp(given, OWN_FOLDER, strlen(OWN_FOLDER)) == 0)
        return; /* the value of the process that started us */
    /* It has the rights of /dev/shm, for tests that act as other users. */
    if (!mkdtemp(own_folder) || chmod(own_folder, 01777) ||
        setenv("MDISPATCH_FOLDER", own_folder, 1)) {
        perror(own_folder);
        abort();
    }
    own_folder_maker = getpid();
    atexit(own_folder_remove);
}

#endif
