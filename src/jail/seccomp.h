/* Seccomp filters from allow-lists.
 *
 * The lists are generated from `#syscalls:PROFILE` comments beside the code that makes the calls
 * (tools/gen-seccomp). Calls whose arguments matter are restricted by rules in seccomp.c, per
 * profile.
 */
#pragma once

enum seccomp_profile {
    SECCOMP_MONITOR,        /* the monitor's loops; a stray call ends it and is logged */
    SECCOMP_MONITOR_POD,    /* ... of a pod: it passes on what its containers send */
    SECCOMP_NET,            /* its thread with the network stack: sockets, but no files */
    SECCOMP_VCPU,           /* its threads that run a guest: nothing else */
    SECCOMP_REAPER,         /* pid 1 of a guest's process tree */
    SECCOMP_REAPER_REDUCED, /* ... which also provides what its kernel may not get by itself */
    SECCOMP_UML,            /* a user-mode kernel and its stub processes; a stray call fails */
    SECCOMP_UML_FLOATING,   /* ... whose heap address the host randomizes: a supervisor decides */
    SECCOMP_UML_SMP,        /* ... that has several CPUs */
    SECCOMP_UML_SMP_FLOATING,
    SECCOMP_UML_REDUCED, /* ... without namespaces; with a supervisor only */
    SECCOMP_UML_PTRACE,  /* ... that traces its stubs */
    SECCOMP_FS,          /* a share server; a stray call kills it */
    SECCOMP_FS_OWNERS,   /* ... that gives files away, and sets set-ID bits for their owners */
    SECCOMP_FS_LATER,    /* ... that has contents fetched, and passes files on for that */
    SECCOMP_CONNECTOR,   /* connects to host sockets for a guest; a stray call kills it */
    SECCOMP_INTERCEPT,   /* intercepts TLS connections; a stray call kills it */
    SECCOMP_CONVERTER,   /* turns an archive into an image; a stray call kills it */
    SECCOMP_BUCKET,      /* talks to a bucket's server; a stray call fails */
    SECCOMP_BUCKET_UNIX, /* ... and to services of the host, to look up its name */
};

/* Installs the filter on the calling thread, and on what it starts from here on; each thread of a
 * process installs its own. Sets no_new_privs. */
int seccomp_enter(enum seccomp_profile p);

/* The same, but calls that the profile refers to the supervisor wait for its answer: returns the
 * descriptor (close-on-exec) on which it is asked. Without a supervisor, these calls are allowed.
 * -EBUSY if we are supervised ourselves, as in some containers: there can be only one. */
int seccomp_enter_supervised(enum seccomp_profile p);
