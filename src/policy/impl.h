/* The parts of a rulebook; only for src/policy. */
#pragma once

#include "net/policy.h"
#include "policy/rulebook.h"
#include "policy/strict_yaml.h"

enum {
    BOOK_FILES_MAX = 3,
    BOOK_RULES_MAX = 1024, /* rule sets in a file */
    BOOK_ITEMS_MAX = 1024, /* entries of a list */
    BOOK_ITEM_TEXT_MAX = 1024,
};

enum field_type {
    FIELD_CPUS,
    FIELD_SIZE,
    FIELD_TIME,
    FIELD_COUNT,
    FIELD_FLAG,
    FIELD_CHOICE,
    FIELD_LIST
};

struct judge;
struct layer;
struct setting;
typedef void check_fn(struct judge *j, const struct layer *l, const struct setting *s);

/* Two files' values of a field always combine in the same way: a spec must satisfy both. */
struct field {
    const char *section; /* "" = at the top */
    const char *key;
    enum field_type type;
    const char *help;    /* a sentence for the docs and `policy init` */
    const char *example; /* in YAML's short form */
    check_fn *check;     /* NULL: something else reads it (defaults, match) */
    /* CHOICE: in order of strictness. LIST: all allowed entries. */
    const char *const *choices;
    /* Checks one entry of a list, beyond its length. */
    int (*valid)(const char *text, struct err *e);
};
extern const struct field policy_fields[]; /* ends with a NULL key */

struct item {
    char *text;
    unsigned line;
};

struct setting {
    const struct field *field;
    unsigned line;
    uint64_t number; /* of all types but LIST; a CHOICE's index */
    struct item *item;
    size_t n;
    struct policy *ceiling; /* of egress.allow */
};

/* Settings that apply together: a file's own, or those of one of its rule sets. */
struct layer {
    const char *file;
    unsigned line;
    char *name; /* of a rule set; "" */
    struct setting *set;
    size_t n;
};

struct book_file {
    char *name;
    struct layer all;
    struct layer *rule;
    size_t n_rules;
    unsigned rules_line;
};

struct rulebook {
    struct book_file file[BOOK_FILES_MAX];
    size_t n;
    unsigned shared; /* how many others also hold it: rulebook_free() */
};

/* Loads the policy for a command that does `why` to sandbox `name` (NULL: it has none yet). A
 * policy that cannot be read is recorded. policy_audit() uses what was loaded last instead of
 * reading it again. */
int rulebook_load_for(const struct store *s, enum hold why, const char *name, struct rulebook **ret,
                      struct err *e);
extern struct rulebook *rulebook_seen; /* may be NULL; holds a reference */

const struct setting *layer_get(const struct layer *l, const char *section, const char *key);
json_t *items_json(const struct setting *s);
bool item_matches(const struct setting *s, const char *text); /* any of its wildcards */
/* "2 GiB", "1h30m", "a, b" */
void setting_text(const struct setting *s, char *out, size_t size);
void number_text(enum field_type type, uint64_t v, char *out, size_t size);

/* The layers that apply to a spec: at most two from each file. -1: a file has rule sets and none of
 * them matches; *none is that file. */
struct chosen {
    const struct layer *v[2 * BOOK_FILES_MAX];
    size_t n;
};
int rulebook_choose(const struct rulebook *b, const struct sandbox_spec *spec, struct chosen *ret,
                    const struct book_file **none);
bool layer_matches(const struct layer *l, const struct sandbox_spec *spec);
bool image_matches(const struct setting *s, const struct sandbox_spec *spec);
/* Whether the label does not come from the image. */
bool label_is_own(const struct sandbox_spec *spec, const char *label);

/* --- judging --- */
struct judge {
    const struct store *store;
    enum hold why;
    unsigned said;
    struct sandbox_spec *spec;
    struct verdict *out;
    bool failed; /* out of memory */
};

void judge_find(struct judge *j, const struct layer *l, const struct setting *s, unsigned line,
                enum outcome o, const char *asked, const char *allowed);

/* Records that a file has rule sets and none of them matches. */
void judge_none(struct judge *j, const struct book_file *none);

/* Records that s refuses or allows what was asked for. */
void judge_refuse(struct judge *j, const struct layer *l, const struct setting *s,
                  const char *asked);
void judge_allow(struct judge *j, const struct layer *l, const struct setting *s,
                 const char *asked);
/* ERR_POLICY with what the verdict refuses; records it. */
int verdict_refuse(const struct store *s, enum hold why, const char *name, const struct verdict *v,
                   struct err *e);

/* A number in the spec that caps and defaults apply to. */
struct quantity {
    const char *key;
    enum spec_said said;
    bool none_is_all; /* 0 means no limit */
    uint64_t (*get)(const struct sandbox_spec *s);
    void (*set)(struct sandbox_spec *s, uint64_t v);
};
const struct quantity *quantity_find(const char *key); /* NULL if there is none */

check_fn check_cap, check_disk_volumes, check_sandboxes, check_ports, check_images,
    check_registries, check_digest, check_egress, check_secrets, check_paths, check_buckets,
    check_write_paths, check_required, check_labels, check_forbidden, check_security, check_engines,
    check_home;
int valid_bucket(const char *text, struct err *e);
#define FORBIDDEN_TEXT "nothing of the kind"
extern const char *const forbidden_names[]; /* what `forbid` may contain; ends with NULL */
