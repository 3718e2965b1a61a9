/* What programs in the guest may do to their own kernel: capabilities, privileges, processes.
 *
 * The guest's kernel enforces it, for commands, terminals and file operations alike; nothing on the
 * host depends on it. Lists are stored as they result, not as requested: the profile, then what was
 * dropped, then what was added.
 */
#pragma once

#include "util/err.h"
#include "util/strlist.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SPEC_PIDS_MAX = 4194304, /* Linux's maximum */
    SPEC_GROUPS_MAX = 64,
    SPEC_SYSCTLS_MAX = 64,
    SPEC_CAPS_TEXT_MAX = 768,
};

#define SPEC_CAP_COUNT 41
#define SPEC_CAPS_ALL ((UINT64_C(1) << SPEC_CAP_COUNT) - 1)
#define SPEC_CAP_SYS_PTRACE (UINT64_C(1) << 19)
#define SPEC_CAP_SYS_ADMIN (UINT64_C(1) << 21)

/* In order of strictness. */
enum security_profile {
    SECURITY_DEFAULT, /* root may do anything to its own kernel */
    SECURITY_RESTRICTED, /* neither CAP_SYS_ADMIN nor CAP_SYS_PTRACE, no new privileges, mounts without set-user-ID */
    SECURITY_DOCKER, /* three capabilities, 256 processes, scratch directories in memory */
};
#define SECURITY_PROFILES "default|restricted|docker"

struct spec_security {
    enum security_profile profile;
    uint64_t caps; /* the most that root may have: bits by number */
    bool no_new_privs;
    bool read_only;         /* the root file system; mounts stay as requested */
    uint32_t pids;          /* processes and threads, including PID 1; 0 = no limit */
    struct strlist groups;  /* additional groups for every command: names or numbers */
    struct strlist sysctls; /* K=V */
};

void spec_security_init(struct spec_security *s);
void spec_security_free(struct spec_security *s); /* and reinitializes it */

/* Applies the profile's settings for capabilities, privileges and processes. False: no such
 * name. */
bool spec_security_set_profile(struct spec_security *s, const char *name);
const char *security_profile_name(enum security_profile p);
/* "CHOWN", "cap_chown", "ALL": the bits. */
int spec_parse_cap(const char *name, uint64_t *ret, struct err *e);
/* "CHOWN,FOWNER"; "all"; "none". */
void spec_caps_format(uint64_t caps, char out[SPEC_CAPS_TEXT_MAX]);
/* Add groups, by name or number; and kernel settings, of those that only concern one sandbox. */
int spec_add_group(struct spec_security *s, const char *group, struct err *e);
int spec_add_sysctl(struct spec_security *s, const char *arg, struct err *e);
/* "docker; capabilities CHOWN,...; no new privileges; 256 processes": what `modify` can change. NULL:
 * out of memory. */
char *spec_security_text(const struct spec_security *s);

json_t *spec_security_to_json(const struct spec_security *s);
/* Reads "security_profile" and "security" of the spec `j`. */
int spec_security_from_json(struct spec_security *s, const json_t *j, struct err *e);
