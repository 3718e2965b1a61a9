/* Loads files into a rulebook: see rulebook.h for which files, fields.c for their contents. */
#include "policy/impl.h"

#include "util/array.h"
#include "util/fs.h"
#include "util/parse.h"
#include "util/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct load {
    struct book_file *file;
    struct err *e;
};

/* --- values ----------------------------------------------------------------------------------- */

static int read_number(const struct load *l, const struct yaml *y, enum field_type type,
                       uint64_t *ret)
{
    static const char *const expected[] = {
        [FIELD_CPUS] = "expected a number of CPUs such as 2 or 0.5",
        [FIELD_SIZE] = PARSE_SIZE_EXAMPLES,
        [FIELD_TIME] = PARSE_DURATION_EXAMPLES,
        [FIELD_COUNT] = "expected a number",
    };
    int r = yaml_expect(l->file->name, y, YAML_TEXT, y->key, l->e);
    if (r < 0)
        return r;
    r = type == FIELD_CPUS   ? parse_milli(y->text, ret)
        : type == FIELD_SIZE ? parse_size(y->text, MIB, ret)
        : type == FIELD_TIME ? parse_duration_ms(y->text, ret)
                             : parse_u64(y->text, ret);
    if (r == 0 && *ret == 0 && type != FIELD_COUNT)
        return yaml_fail(l->file->name, y, l->e, "%s must be more than 0", y->key);
    return r < 0 ? yaml_fail(l->file->name, y, l->e, "%s '%.60s': %s", y->key, y->text,
                             r == -ERANGE ? "too large" : expected[type])
                 : 0;
}

static int find_choice(const struct load *l, const struct yaml *y, const char *what,
                       const char *const *choices, uint64_t *ret)
{
    char list[400] = "";
    const char *best = NULL;
    unsigned unlike = TEXT_FAR;
    for (size_t i = 0; choices[i]; i++) {
        size_t at = strlen(list);
        (void)snprintf(list + at, sizeof(list) - at, "%s%s", i ? ", " : "", choices[i]);
        unsigned d = word_unlikeness(y->text, choices[i]);
        if (strcmp(choices[i], y->text) == 0) {
            *ret = i;
            return 0;
        }
        if (d < unlike) {
            unlike = d;
            best = choices[i];
        }
    }
    (void)yaml_fail(l->file->name, y, l->e, "%s: '%.60s' is not one of %s", what, y->text, list);
    if (best)
        err_hint(l->e, "did you mean '%s'?", best);
    return -EINVAL;
}

static int read_item(const struct load *l, const struct yaml *y, struct setting *s)
{
    const struct field *f = s->field;
    struct err why = {0};
    uint64_t ignored;
    int r = yaml_expect(l->file->name, y, YAML_TEXT, "an entry", l->e);
    if (r < 0)
        return r;
    if (!*y->text || strlen(y->text) > BOOK_ITEM_TEXT_MAX)
        return yaml_fail(l->file->name, y, l->e, "%s: an entry is %s", f->key,
                         *y->text ? "too long" : "empty");
    if (f->choices)
        r = find_choice(l, y, f->key, f->choices, &ignored);
    if (r == 0 && f->valid && f->valid(y->text, &why) < 0)
        r = yaml_fail(l->file->name, y, l->e, "%s: %s", f->key, why.msg);
    if (r == 0 && s->ceiling) {
        AUTO_FREE char *rule = NULL;
        if (asprintf(&rule, "allow@%s", y->text) < 0)
            return err_oom(l->e);
        if (policy_add_rules(s->ceiling, rule, &why) < 0)
            r = yaml_fail(l->file->name, y, l->e, "%s: %s", f->key, why.msg);
    }
    if (r < 0)
        return r;
    s->item[s->n] = (struct item){.text = strdup(y->text), .line = y->line};
    return s->item[s->n++].text ? 0 : err_oom(l->e);
}

static int read_list(const struct load *l, const struct yaml *y, struct setting *s)
{
    int r = yaml_expect(l->file->name, y, YAML_LIST, y->key, l->e);
    if (r < 0)
        return r;
    if (y->n > BOOK_ITEMS_MAX)
        return yaml_fail(l->file->name, y, l->e, "%s has more than %d entries", y->key,
                         BOOK_ITEMS_MAX);
    s->item = calloc(y->n + 1, sizeof(*s->item));
    if (s->field->check == check_egress) {
        s->ceiling = malloc(sizeof(*s->ceiling));
        if (s->ceiling)
            policy_init(s->ceiling);
    }
    if (!s->item || (s->field->check == check_egress && !s->ceiling))
        return err_oom(l->e);
    for (size_t i = 0; r == 0 && i < y->n; i++)
        r = read_item(l, &y->item[i], s);
    return r;
}

static int read_setting(const struct load *l, const struct yaml *y, const struct field *f,
                        struct layer *to)
{
    if (ARRAY_RESIZE(to->set, to->n + 1) < 0)
        return err_oom(l->e);
    struct setting *s = &to->set[to->n++];
    *s = (struct setting){.field = f, .line = y->line};
    if (f->type == FIELD_LIST)
        return read_list(l, y, s);
    if (f->type == FIELD_FLAG) {
        bool on = false;
        int r = yaml_flag(l->file->name, y, &on, l->e);
        s->number = on;
        return r;
    }
    if (f->type != FIELD_CHOICE)
        return read_number(l, y, f->type, &s->number);
    int r = yaml_expect(l->file->name, y, YAML_TEXT, y->key, l->e);
    return r < 0 ? r : find_choice(l, y, y->key, f->choices, &s->number);
}

/* --- layers ----------------------------------------------------------------------------------- */

static const struct field *find_field(const char *section, const char *key)
{
    for (const struct field *f = policy_fields; f->key; f++)
        if (*f->key == *key && strcmp(f->key, key) == 0 && strcmp(f->section, section) == 0)
            return f;
    return NULL;
}

static bool is_section(const char *key)
{
    for (const struct field *f = policy_fields; f->key; f++)
        if (*f->section == *key && strcmp(f->section, key) == 0)
            return true;
    return false;
}

/* The keys that may be there; section "" = the top of a file, or of a rule set. */
static int unknown_key(const struct load *l, const struct yaml *y, const char *section, bool rule)
{
    const char *known[64];
    size_t n = 0;
    const char *last = "";
    if (!*section)
        known[n++] = rule ? "name" : "rules";
    for (const struct field *f = policy_fields; f->key && n < 63; f++) {
        if (strcmp(f->section, section) == 0)
            known[n++] = f->key;
        else if (!*section && strcmp(f->section, last) != 0 &&
                 strcmp(f->section, rule ? "audit" : "match") != 0)
            known[n++] = last = f->section;
    }
    known[n] = NULL;
    return yaml_unknown_key(l->file->name, y, known, l->e);
}

static int read_section(const struct load *l, const struct yaml *y, struct layer *to)
{
    int r = yaml_expect(l->file->name, y, YAML_MAP, y->key, l->e);
    for (size_t i = 0; r == 0 && i < y->n; i++) {
        const struct field *f = find_field(y->key, y->item[i].key);
        r = f ? read_setting(l, &y->item[i], f, to) : unknown_key(l, &y->item[i], y->key, false);
    }
    return r;
}

static int read_rules(struct load *l, const struct yaml *y);

static int read_member(struct load *l, const struct yaml *y, struct layer *to, bool rule)
{
    const struct field *f = find_field("", y->key);
    if (f)
        return read_setting(l, y, f, to);
    if (!rule && strcmp(y->key, "rules") == 0)
        return read_rules(l, y);
    if (rule && strcmp(y->key, "name") == 0) {
        int r = yaml_expect(l->file->name, y, YAML_TEXT, "name", l->e);
        if (r < 0 || strlen(y->text) > 128)
            return r < 0 ? r : yaml_fail(l->file->name, y, l->e, "name is too long");
        free(to->name);
        to->name = strdup(y->text);
        return to->name ? 0 : err_oom(l->e);
    }
    if (is_section(y->key) && strcmp(y->key, rule ? "audit" : "match") != 0)
        return read_section(l, y, to);
    return unknown_key(l, y, "", rule);
}

static int read_layer(struct load *l, const struct yaml *y, struct layer *to, bool rule)
{
    to->file = l->file->name;
    int r = yaml_expect(l->file->name, y, YAML_MAP, rule ? "a rule set" : "a policy", l->e);
    for (size_t i = 0; r == 0 && i < y->n; i++)
        r = read_member(l, &y->item[i], to, rule);
    return r;
}

static int read_rules(struct load *l, const struct yaml *y)
{
    struct book_file *f = l->file;
    int r = yaml_expect(f->name, y, YAML_LIST, "rules", l->e);
    if (r == 0 && y->n > BOOK_RULES_MAX)
        return yaml_fail(f->name, y, l->e, "more than %d rule sets", BOOK_RULES_MAX);
    if (r < 0)
        return r;
    f->rules_line = y->line;
    f->rule = calloc(y->n + 1, sizeof(*f->rule));
    for (size_t i = 0; f->rule && r == 0 && i < y->n; i++) {
        struct layer *to = &f->rule[f->n_rules++];
        to->line = y->item[i].line;
        r = read_layer(l, &y->item[i], to, true);
        if (r == 0 && !to->name && asprintf(&to->name, "%zu", i + 1) < 0) {
            to->name = NULL;
            return err_oom(l->e);
        }
    }
    return f->rule ? r : err_oom(l->e);
}

/* --- files ------------------------------------------------------------------------------------ */

static void free_layer(struct layer *l)
{
    for (size_t i = 0; i < l->n; i++) {
        struct setting *s = &l->set[i];
        for (size_t k = 0; k < s->n; k++)
            free(s->item[k].text);
        free(s->item);
        if (s->ceiling)
            policy_free(s->ceiling);
        free(s->ceiling);
    }
    free(l->set);
    free(l->name);
}

void rulebook_free(struct rulebook *b)
{
    if (b && b->shared) {
        b->shared--;
        return;
    }
    for (size_t i = 0; b && i < b->n; i++) {
        struct book_file *f = &b->file[i];
        free_layer(&f->all);
        for (size_t k = 0; k < f->n_rules; k++)
            free_layer(&f->rule[k]);
        free(f->rule);
        free(f->name);
    }
    free(b);
}

int rulebook_load_text(const char *name, const char *text, size_t n, struct rulebook **ret,
                       struct err *e)
{
    AUTO_RULEBOOK struct rulebook *b = calloc(1, sizeof(*b));
    AUTO_YAML struct yaml y = {0};
    if (!b)
        return err_oom(e);
    struct book_file *f = &b->file[b->n++];
    struct load l = {.file = f, .e = e};
    f->name = strdup(name);
    f->all.name = strdup("");
    if (!f->name || !f->all.name)
        return err_oom(e);
    int r = yaml_tree_parse(name, text, n, &y, e);
    if (r == 0)
        r = read_layer(&l, &y, &f->all, false);
    if (r == 0)
        *ret = steal_ptr(&b);
    return r;
}

int rulebook_join(struct rulebook *to, struct rulebook *more, struct err *e)
{
    if (to->n + more->n > BOOK_FILES_MAX) {
        rulebook_free(more);
        return err_set(e, E2BIG, "too many policy files");
    }
    for (size_t i = 0; i < more->n; i++)
        to->file[to->n++] = more->file[i];
    free(more);
    return 0;
}

/* Whether only root can have written it. */
static bool is_roots(const struct stat *st)
{
    return st->st_uid == 0 && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

static int read_open(int fd, const char *name, struct rulebook **ret, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot read %s", name);
    if (!S_ISREG(st.st_mode) || st.st_size > YAML_FILE_MAX)
        return err_set(e, EINVAL, "%s is %s", name,
                       S_ISREG(st.st_mode) ? "too large" : "not a regular file");
    size_t n = (size_t)st.st_size;
    AUTO_FREE char *text = malloc(n + 1);
    if (!text)
        return err_oom(e);
    int r = pread_all(fd, text, n, 0);
    if (r < 0)
        return err_sys(e, -r, "cannot read %s", name);
    return rulebook_load_text(name, text, n, ret, e);
}

int rulebook_load_file(const char *path, struct rulebook **ret, struct err *e)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    return fd < 0 ? err_sys(e, errno, "cannot open %s", path) : read_open(fd, path, ret, e);
}

static int load_operators(struct rulebook **ret, struct err *e)
{
    static const char path[] = POLICY_OPERATOR_DIR "/" POLICY_FILE_NAME;
    struct stat dir, st;
    AUTO_CLOSE int dirfd = open(POLICY_OPERATOR_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        return errno == ENOENT ? 0 : err_sys(e, errno, "cannot open %s", POLICY_OPERATOR_DIR);
    AUTO_CLOSE int fd =
        openat(dirfd, POLICY_FILE_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, errno, "cannot open %s", path);
    if (fstat(dirfd, &dir) < 0 || fstat(fd, &st) < 0)
        return err_sys(e, errno, "cannot read %s", path);
    if (!is_roots(&dir) || !is_roots(&st)) {
        err_set(e, EPERM, "%s is writable by users other than root",
                is_roots(&st) ? "/etc/msb" : path);
        err_hint(e, "as root: chown root:root /etc/msb %s && chmod go-w /etc/msb %s", path, path);
        return -EPERM;
    }
    return read_open(fd, path, ret, e);
}

static int load_users(const struct store *s, struct rulebook **ret, struct err *e)
{
    AUTO_FREE char *path = NULL;
    AUTO_CLOSE int fd = openat(s->home_fd, POLICY_FILE_NAME,
                               O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (asprintf(&path, "%s/%s", s->home, POLICY_FILE_NAME) < 0) {
        path = NULL;
        return err_oom(e);
    }
    return fd < 0 ? err_sys(e, errno, "cannot open %s", path) : read_open(fd, path, ret, e);
}

/* Adds `one`, if there is one, to *all. */
static int add_book(struct rulebook **all, struct rulebook *one, struct err *e)
{
    if (!one)
        return 0;
    if (*all)
        return rulebook_join(*all, one, e);
    *all = one;
    return 0;
}

static int load_all(const struct store *s, struct rulebook **all, struct err *e)
{
    struct rulebook *one = NULL;
    int r = load_operators(&one, e);
    if (r == 0)
        r = add_book(all, one, e);
    one = NULL;
    if (r == 0)
        r = load_users(s, &one, e);
    if (r == 0)
        r = add_book(all, one, e);
    one = NULL;
    if (r == 0 && s->policy_file)
        r = rulebook_load_file(s->policy_file, &one, e);
    return r < 0 ? r : add_book(all, one, e);
}

int rulebook_load(const struct store *s, struct rulebook **ret, struct err *e)
{
    struct rulebook *all = NULL;
    struct err why = {0};
    int r = load_all(s, &all, &why);
    if (r == 0) {
        *ret = all;
        return 0;
    }
    rulebook_free(all);
    if (why.code != ENOMEM) {
        err_hint(&why,
                 "no sandbox can be created, started or changed until that is fixed: see 'msb "
                 "policy check'");
        why.code = ERR_POLICY;
        r = err_wrap(&why, -ERR_POLICY, "policy");
    }
    err_copy(e, &why);
    return r;
}
