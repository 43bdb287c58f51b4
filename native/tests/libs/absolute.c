/* Its block is a number, an address in no object. */
__asm__(".globl mdispatch_library\n.set mdispatch_library, 4096\n");
