/* fault.h - mistakes that can be compiled in, one at a time, by -DMD_WITH_FAULT=MD_FAULT_name, to
 * see whether the tests notice. In every other build MD_FAULT(name) is 0 and produces no code.
 * stress/faults.py reads the names and the comments of this enum.
 */
#ifndef MD_GROUND_FAULT_H
#define MD_GROUND_FAULT_H

enum md__fault {
    MD__NO_FAULT,
    MD_FAULT_NAME_NOT_RUNG,             /* a commit does not wake those who wait for its name */
    MD_FAULT_CHANGE_NOT_RUNG,           /* a commit does not wake those who wait for any change */
    MD_FAULT_ONE_SLEEPER_WOKEN,         /* a ring wakes one sleeper and not all */
    MD_FAULT_WAITER_NOT_ANNOUNCED,      /* a waiter does not set bit 0 of the event word */
    MD_FAULT_PUBLISHED_BEFORE_WRITTEN,  /* the fact is published before its bytes are written */
    MD_FAULT_OLDER_FACTS_FORGOTTEN,     /* a new fact forgets the older ones of its name */
    MD_FAULT_VERSION_NOT_RAISED,        /* the version word is not raised */
    MD_FAULT_VERSION_NOT_COMPARED,      /* a reader does not look at the version again */
    MD_FAULT_SEQUENCE_NOT_RAISED,       /* a strike does not raise the sequence */
    MD_FAULT_FACTS_NOT_COUNTED,         /* the count of facts is not raised */
    MD_FAULT_FREED_BYTES_STAY_COUNTED,  /* the count of bytes in use is not lowered */
    MD_FAULT_NAME_NOT_INDEXED,          /* a new name is not entered into the index */
    MD_FAULT_INDEX_GROWS_WITH_LOSS,     /* a growing index loses a part of its entries */
    MD_FAULT_ONE_TOO_FEW,               /* a wrong bound: at_least is satisfied by one too few */
    MD_FAULT_UNIQUE_NOT_COMPARED,       /* a unique fact is registered beside another */
    MD_FAULT_DEAD_NOT_SWEPT,            /* dead members are not swept */
    MD_FAULT_LOCK_TAKEN_WITHOUT_REPAIR, /* a dead holder's lock is taken without a repair */
    MD_FAULT_RECOVERY_KEEPS_SEQUENCE,   /* a recovery does not raise the sequence */
    MD_FAULT_LEASE_WAKES_ONE,           /* a waiter that the lease woke does not wake the rest */
    MD_FAULT_STRIKE_CUTS_OLDER,         /* a strike cuts off the older facts as well */
    MD_FAULT_IDLE_NOT_RAISED,           /* a name is given back without a raise of its version */
    MD_FAULT_VERSION_BEGINS_ANEW,       /* the next name of a node begins with version 1 */
    MD_FAULT_MOVES_NOT_TOLD,            /* an entry moves in the index without a raise */
    MD_FAULT_ENTRIES_LEFT_OVER,         /* a recovery leaves the index as it is */
};

#ifndef MD_WITH_FAULT
#define MD_WITH_FAULT MD__NO_FAULT
#endif
#define MD_FAULT(name) (MD_WITH_FAULT == MD_FAULT_##name)

#endif
