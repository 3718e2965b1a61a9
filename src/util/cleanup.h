/* Scope-bound cleanup: a resource is released where its variable goes out of scope.
 *
 * AUTO_* attributes replace goto chains; `steal_fd()` and `steal_ptr()` pass ownership on, so a
 * function reads "acquire, acquire, give away".
 */
#pragma once

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CLEANUP(fn) __attribute__((cleanup(fn)))

static inline void cleanup_free_p(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close_p(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}

static inline void cleanup_fclose_p(FILE **f)
{
    if (*f)
        (void)fclose(*f);
}

static inline void cleanup_closedir_p(DIR **d)
{
    if (*d)
        (void)closedir(*d);
}

#define AUTO_FREE CLEANUP(cleanup_free_p)
#define AUTO_CLOSE CLEANUP(cleanup_close_p)
#define AUTO_FCLOSE CLEANUP(cleanup_fclose_p)
#define AUTO_CLOSEDIR CLEANUP(cleanup_closedir_p)

static inline int steal_fd(int *fd)
{
    int ret = *fd;
    *fd = -1;
    return ret;
}

static inline void *steal_ptr_(void *pp)
{
    void *ret = *(void **)pp;
    *(void **)pp = NULL;
    return ret;
}
#define steal_ptr(pp) ((__typeof__(*(pp)))steal_ptr_(pp))

/* Closes and forgets, so that a second close cannot hit a descriptor opened since. */
static inline void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
