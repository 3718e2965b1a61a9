/* Seccomp filters from allow-lists.
 *
 * The lists are generated from `#syscalls:PROFILE` comments beside the code that makes the calls
 * (tools/gen-seccomp). Calls whose arguments matter are narrowed by rules that seccomp.c holds
 * per profile.
 */
#ifndef MSB_JAIL_SECCOMP_H
#define MSB_JAIL_SECCOMP_H

enum seccomp_profile {
    SECCOMP_MONITOR,    /* the monitor's loops; a stray call ends it and is logged */
    SECCOMP_NET,        /* the thread of it that has the network stack: sockets, and no files */
    SECCOMP_VCPU,       /* threads of it that run a guest: nothing but that */
    SECCOMP_REAPER,     /* pid 1 of a guest's process tree */
    SECCOMP_UML,        /* a user-mode kernel and its stub processes; a stray call fails */
    SECCOMP_UML_PTRACE, /* ... which traces its stubs */
    SECCOMP_FS,         /* serves a host directory to a guest; a stray call ends it */
    SECCOMP_CONNECTOR,  /* connects to sockets of the host for a guest; a stray call ends it */
    SECCOMP_CONVERTER,  /* turns an archive into an image; a stray call ends it */
};

/* Closes the filter on the calling thread, and on what it starts from here on; each thread of a
 * process closes its own. no_new_privs is set. */
int seccomp_enter(enum seccomp_profile p);

#endif
