/* doctor: checks whether this machine can run sandboxes, and says what to do if not.
 *
 * doctor.c checks what msb needs and has, doctor_host.c what the host allows, and doctor_boot.c
 * runs a sandbox: that decides, whatever the others find.
 */
#pragma once

#include "engine/engine.h"
#include "store/store.h"

#include <stdbool.h>
#include <stddef.h>

enum mark { MARK_OK, MARK_WARN, MARK_FAIL };
enum { DOCTOR_CHECKS_MAX = 32 };

struct check {
    const char *name;
    enum mark mark;
    char detail[512];
    char remedy[512]; /* "" = none needed */
    /* What --fix can do about it: a setting of the host's kernel. NULL = nothing. */
    const char *sysctl, *value;
};

struct doctor {
    struct check checks[DOCTOR_CHECKS_MAX];
    size_t n;
    struct store store;
    bool have_store;
    char assets[4096];
    bool have_assets;
    bool native_kvm;
    const struct engine_ops *engine; /* the choice of `auto` */
    bool refused;                    /* the host refuses namespaces */
};

struct check *doctor_add(struct doctor *d, const char *name, enum mark mark, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void doctor_remedy(struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* doctor_host.c */
const char *doctor_container(void); /* what contains us; NULL = nothing known */
void doctor_surroundings(struct doctor *d);
void doctor_namespaces(struct doctor *d);
void doctor_seccomp(struct doctor *d);
void doctor_limits(struct doctor *d);
/* Applies the checks' fixes, as root; returns how many settings were changed, or -errno. */
int doctor_fix(const struct doctor *d, bool ask);

/* doctor_boot.c */
void doctor_boot(struct doctor *d);
