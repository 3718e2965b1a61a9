/* The table of fields, and what follows directly from it: reading, showing, the template. */
#include "policy/impl.h"

#include "util/json.h"
#include "util/parse.h"

#include <errno.h>
#include <fnmatch.h>
#include <string.h>

static int valid_path(const char *text, struct err *e)
{
    size_t n = strlen(text);
    if (n > 3 && (strcmp(text + n - 3, ":ro") == 0 || strcmp(text + n - 3, ":rw") == 0))
        n -= 3;
    if (text[0] != '/' || strstr(text, "/../") || strstr(text, "//") ||
        (n >= 3 && strncmp(text + n - 3, "/..", 3) == 0))
        return err_set(e, EINVAL, "'%s' is not an absolute path", text);
    return 0;
}

static int valid_guest_path(const char *text, struct err *e)
{
    AUTO_SPEC struct sandbox_spec any;
    AUTO_FREE char *path = spec_guest_path(text);
    spec_init(&any);
    return path && strcmp(path, text) == 0
               ? spec_add_write_path(&any, text, e)
               : err_set(e, EINVAL, "'%s' is not an absolute path without a '/' at its end", text);
}

static int valid_label(const char *text, struct err *e)
{
    return text[0] && text[0] != '=' ? 0 : err_set(e, EINVAL, "expected KEY or KEY=VALUE");
}

static int valid_target(const char *text, struct err *e)
{
    return strpbrk(text, ",@")
               ? err_set(e, EINVAL,
                         "'%s' is not a target: expected a host name, an address or "
                         "a group, one in each entry",
                         text)
               : 0;
}

static const char *const profile_names[] = {"default", "restricted", "docker", NULL};
static const char *const audit_levels[] = {"off", "denied", "all", NULL};
static const char *const audit_arguments[] = {"full", "hash", NULL};
static const char *const engine_names[] = {"kvm", "uml", "uml-ptrace", NULL};

#define PATHS(key, what)                                                                       \
    {                                                                                          \
        "paths", key, FIELD_LIST,                                                              \
            "Directories of the host that " what " may come from; wildcards match within one " \
            "component, and an entry that ends in :ro may not be written to",                  \
            "[/srv/data:ro, /home/*/work]", check_paths, .valid = valid_path                   \
    }

/* One a line, as far as they fit: */
/* clang-format off */
const struct field policy_fields[] = {
    {"caps", "cpus", FIELD_CPUS, "CPUs", "2", check_cap},
    {"caps", "memory", FIELD_SIZE, "Memory of the guest", "2G", check_cap},
    {"caps", "disk", FIELD_SIZE,
     "Size of the root disk, and of each disk volume that is made", "10G", check_cap},
    {"caps", "processes", FIELD_COUNT,
     "Processes and threads in the guest (--pids-limit)", "256", check_cap},
    {"caps", "lifetime", FIELD_TIME, "Time from start to stop (--max-duration)", "8h", check_cap},
    {"caps", "idle", FIELD_TIME,
     "Time without activity before a stop (--idle-timeout)", "30m", check_cap},
    {"caps", "output", FIELD_SIZE,
     "What a command may write before it is ended (--max-output)", "64M", check_cap},
    {"caps", "ports", FIELD_COUNT, "Published ports", "4", check_ports},
    {"caps", "sandboxes", FIELD_COUNT,
     "Sandboxes in a user's MSB_HOME, running or not; in a rule set, those that it matches",
     "20", check_sandboxes},
    {"defaults", "cpus", FIELD_CPUS, "CPUs of a sandbox that sets none", "1"},
    {"defaults", "memory", FIELD_SIZE, "Memory of a sandbox that sets none", "512M"},
    {"defaults", "disk", FIELD_SIZE, "Root disk of a sandbox that sets none", "4G"},
    {"defaults", "processes", FIELD_COUNT, "Process limit of a sandbox that sets none", "256"},
    {"defaults", "lifetime", FIELD_TIME, "Lifetime of a sandbox that sets none", "1h"},
    {"defaults", "idle", FIELD_TIME, "Idle timeout of a sandbox that sets none", "10m"},
    {"defaults", "output", FIELD_SIZE,
     "Output limit for commands of a sandbox that sets none", "16M"},
    {"images", "allow", FIELD_LIST,
     "Images, with wildcards: references, msb/base, or absolute paths of directories and tar files",
     "[msb/base, \"python:3.*\", \"ghcr.io/acme/*\"]", check_images},
    {"images", "registries", FIELD_LIST,
     "Registries that references may name; Docker Hub is docker.io",
     "[docker.io, ghcr.io]", check_registries},
    {"images", "digest", FIELD_FLAG,
     "References must have a digest (NAME@sha256:...); msb/base needs none", "true", check_digest},
    {"egress", "allow", FIELD_LIST,
     "All that a sandbox may reach: TARGET[:PROTOCOL[:PORTS]] as in --net-rule, groups included; "
     "[] is nothing", "[public, \"*.corp.example:tcp:443\"]", check_egress, .valid = valid_target},
    {"secrets", "allow", FIELD_LIST,
     "Names of secrets that a sandbox may have, in its environment or bound, with wildcards",
     "[\"CI_*\"]", check_secrets},
    PATHS("volumes", "volumes, mounted files, disk images and root disks"),
    PATHS("workspaces", "workspaces"),
    PATHS("copies", "files copied into a new sandbox (--copy, --script-path), or to and from one (msb cp)"),
    PATHS("sockets", "host sockets (--vsock)"),
    {"", "buckets", FIELD_LIST,
     "Buckets that workspaces may be in, with all below: s3://BUCKET[/PREFIX], or "
     "https://HOST/... elsewhere",
     "[\"s3://team-*/agents\"]", check_buckets, .valid = valid_bucket},
    {"", "write_paths", FIELD_LIST,
     "Directories of the guest that may be writable; the rest is read-only",
     "[/workspace, /tmp]", check_write_paths, .valid = valid_guest_path},
    {"labels", "required", FIELD_LIST,
     "Labels that a sandbox must have: KEY, or KEY=VALUE with wildcards",
     "[team, \"env=*\"]", check_required, .valid = valid_label},
    {"labels", "allowed", FIELD_LIST,
     "Labels that a sandbox may have; those of its image do not count",
     "[team=*, env=dev]", check_labels, .valid = valid_label},
    {"", "forbid", FIELD_LIST,
     "Options of 'msb create' that may not be used",
     "[vsock, proxy, mount-disk]", check_forbidden, forbidden_names},
    {"", "security", FIELD_CHOICE,
     "Security profile that a sandbox must at least have (--security)",
     "restricted", check_security, profile_names},
    {"", "engines", FIELD_LIST,
     "Engines that may run a sandbox; the first is used where auto would choose another",
     "[kvm]", check_engines, engine_names},
    {"", "homes", FIELD_LIST,
     "Directories that MSB_HOME may be, with wildcards",
     "[/var/lib/msb/*]", check_home, .valid = valid_path},
    {"audit", "level", FIELD_CHOICE,
     "What the audit log records at least; MSB_AUDIT can only ask for more",
     "all", .choices = audit_levels},
    {"audit", "argv", FIELD_CHOICE,
     "Arguments of commands in full, or only their hash", "hash", .choices = audit_arguments},
    {"audit", "syslog", FIELD_FLAG, "Send records to syslog, too", "true"},
    {"audit", "journald", FIELD_FLAG, "Send records to the journal, too", "true"},
    {"audit", "command", FIELD_LIST,
     "A program that reads records, one a line: its path and its arguments",
     "[/usr/local/bin/ship-audit, --quiet]"},
    {"match", "labels", FIELD_LIST,
     "Labels of the sandbox that the set is for: any of these", "[team=ml]"},
    {"match", "images", FIELD_LIST, "Images that the set is for", "[\"python:*\"]"},
    {"match", "users", FIELD_LIST,
     "Users, by name or number, who may use the set", "[alice, \"1000\"]"},
    {"match", "groups", FIELD_LIST,
     "Groups, by name or number, whose members may use the set", "[ci]"},
    {0},
};
/* clang-format on */

/* --- values ----------------------------------------------------------------------------------- */

void number_text(enum field_type type, uint64_t v, char *out, size_t size)
{
    if (type == FIELD_SIZE)
        format_bytes(v, out, size);
    else if (type == FIELD_TIME)
        format_duration(v, out, size);
    else if (type == FIELD_CPUS)
        (void)snprintf(out, size, "%g", (double)v / 1000);
    else if (type == FIELD_FLAG)
        (void)snprintf(out, size, "%s", v ? "true" : "false");
    else
        (void)snprintf(out, size, "%llu", (unsigned long long)v);
}

void setting_text(const struct setting *s, char *out, size_t size)
{
    if (s->field->type == FIELD_CHOICE) {
        (void)snprintf(out, size, "%s", s->field->choices[s->number]);
        return;
    }
    if (s->field->type != FIELD_LIST) {
        number_text(s->field->type, s->number, out, size);
        return;
    }
    size_t at = 0;
    (void)snprintf(out, size, "nothing");
    for (size_t i = 0; i < s->n; i++) {
        int n = snprintf(out + at, size - at, "%s%s", i ? ", " : "", s->item[i].text);
        if (n < 0 || (size_t)n >= size - at - 8) { /* room for the dots */
            (void)snprintf(out + at, size - at, ", ...");
            return;
        }
        at += (size_t)n;
    }
}

const struct setting *layer_get(const struct layer *l, const char *section, const char *key)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->set[i].field->key, key) == 0 &&
            strcmp(l->set[i].field->section, section) == 0)
            return &l->set[i];
    return NULL;
}

bool item_matches(const struct setting *s, const char *text)
{
    for (size_t i = 0; i < s->n; i++)
        if (fnmatch(s->item[i].text, text, FNM_NOESCAPE) == 0)
            return true;
    return false;
}

/* --- for people ------------------------------------------------------------------------------- */

/* Whether this setting is in effect: the first of the smallest caps for all sandboxes in all files;
 * the last of the defaults. */
static bool is_in_effect(const struct rulebook *b, const struct setting *s)
{
    bool before = true, cap = strcmp(s->field->section, "caps") == 0;
    if (!cap && strcmp(s->field->section, "defaults") != 0)
        return true;
    for (size_t i = 0; i < b->n; i++) {
        const struct setting *o = layer_get(&b->file[i].all, s->field->section, s->field->key);
        before = before && o != s;
        if (o && o != s &&
            (cap ? o->number < s->number || (before && o->number == s->number) : !before))
            return false;
    }
    return true;
}

static void put_setting(const struct rulebook *b, const struct layer *l, const struct setting *s,
                        struct buf *out)
{
    char value[512], name[64];
    (void)snprintf(name, sizeof(name), "%s%s%s", s->field->section, *s->field->section ? "." : "",
                   s->field->key);
    setting_text(s, value, sizeof(value));
    (void)buf_printf(out, "  %-18s  %-28s  %s:%u%s\n", name, value, l->file, s->line,
                     l->line || is_in_effect(b, s) ? "" : "  overruled");
}

static void put_layer(const struct rulebook *b, const struct layer *l, struct buf *out)
{
    if (l->line)
        (void)buf_printf(out, "rule set '%s' (%s:%u)\n", l->name, l->file, l->line);
    for (size_t i = 0; i < l->n; i++)
        put_setting(b, l, &l->set[i], out);
}

void rulebook_print(const struct rulebook *b, struct buf *out)
{
    if (!b) {
        (void)buf_printf(out, "no policy: everything is allowed\n");
        return;
    }
    (void)buf_printf(out, "every sandbox\n");
    for (size_t i = 0; i < b->n; i++)
        put_layer(b, &b->file[i].all, out);
    for (size_t i = 0; i < b->n; i++)
        for (size_t k = 0; k < b->file[i].n_rules; k++)
            put_layer(b, &b->file[i].rule[k], out);
}

json_t *items_json(const struct setting *s)
{
    json_t *a = json_array();
    for (size_t i = 0; i < s->n; i++)
        json_add(&a, json_string(s->item[i].text));
    return a;
}

static json_t *setting_json(const struct rulebook *b, const struct layer *l,
                            const struct setting *s)
{
    char text[64];
    json_t *value = NULL;
    if (s->field->type == FIELD_LIST) {
        value = items_json(s);
    } else if (s->field->type == FIELD_FLAG) {
        value = json_boolean(s->number);
    } else if (s->field->type == FIELD_COUNT) {
        value = json_integer((json_int_t)s->number);
    } else {
        setting_text(s, text, sizeof(text));
        value = json_string(text);
    }
    return json_pack("{s:s, s:s, s:o, s:s, s:i, s:b}", "section", s->field->section, "key",
                     s->field->key, "value", value, "file", l->file, "line", (int)s->line,
                     "in_effect", l->line ? 1 : is_in_effect(b, s));
}

static json_t *layer_json(const struct rulebook *b, const struct layer *l)
{
    json_t *a = json_array();
    for (size_t i = 0; i < l->n; i++)
        (void)json_array_append_new(a, setting_json(b, l, &l->set[i]));
    return a;
}

json_t *rulebook_json(const struct rulebook *b)
{
    json_t *files = json_array(), *all = json_array(), *rules = json_array();
    for (size_t i = 0; b && i < b->n; i++) {
        const struct book_file *f = &b->file[i];
        json_t *own = layer_json(b, &f->all);
        (void)json_array_append_new(files, json_string(f->name));
        (void)json_array_extend(all, own);
        json_decref(own);
        for (size_t k = 0; k < f->n_rules; k++)
            (void)json_array_append_new(rules,
                                        json_pack("{s:s, s:s, s:i, s:o}", "name", f->rule[k].name,
                                                  "file", f->name, "line", (int)f->rule[k].line,
                                                  "settings", layer_json(b, &f->rule[k])));
    }
    return json_pack("{s:o, s:o, s:o}", "files", files, "settings", all, "rules", rules);
}

void rulebook_template(struct buf *out)
{
    const char *section = "";
    (void)buf_printf(
        out,
        "## What sandboxes may be: see msb-policy(1). Every line is optional: remove the '# ' of\n"
        "## those that you want, and of their section. 'msb policy check' finds mistakes.\n");
    for (const struct field *f = policy_fields; f->key; f++) {
        if (strcmp(f->section, "match") == 0)
            continue;
        if (*f->section && strcmp(f->section, section) != 0)
            (void)buf_printf(out, "\n# %s:\n", f->section);
        else if (!*f->section)
            (void)buf_printf(out, "\n");
        section = f->section;
        (void)buf_printf(out, "%s%s\n", *f->section ? "#   # " : "## ", f->help);
        (void)buf_printf(out, "# %s%s: %s\n", *f->section ? "  " : "", f->key, f->example);
    }
    (void)buf_printf(out,
                     "\n## Sets of the same settings for some sandboxes: the first that matches "
                     "counts, and a sandbox\n## that none matches is refused.\n# rules:\n"
                     "#   - name: ml\n#     match:\n");
    for (const struct field *f = policy_fields; f->key; f++)
        if (strcmp(f->section, "match") == 0)
            (void)buf_printf(out, "#       # %s\n#       %s: %s\n", f->help, f->key, f->example);
    (void)buf_printf(out, "#     caps: {cpus: 8, memory: 16G}\n#   - name: everybody else\n"
                          "#     caps: {cpus: 2, memory: 2G}\n");
}
