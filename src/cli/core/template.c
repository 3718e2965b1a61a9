#include "cli/core/template.h"

#include "util/cleanup.h"
#include "util/json.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 16, VARS_MAX = 8, ARGS_MAX = 4, NAME_MAX_LEN = 64, STEPS_MAX = 1 << 16 };

struct var {
    const char *name; /* in the template */
    size_t len;
    json_t *v; /* borrowed */
};

struct run {
    const char *p, *end; /* what is left of the action */
    const char *at;      /* in the template, after the action */
    json_t *root, *dot;
    struct var vars[VARS_MAX];
    size_t n_vars;
    unsigned depth, steps;
    struct buf *out; /* NULL: nothing is printed */
    struct err *e;
};

static int wrong(struct run *r, const char *what)
{
    return err_set(r->e, EINVAL, "template: %s in '{{%.*s}}'", what,
                   (int)MIN(r->end - r->p > 0 ? r->end - r->p : 0, 60), r->p);
}

/* --- values ---------------------------------------------------------------------------------- */

static void print_value(struct buf *out, const json_t *v)
{
    const char *key;
    json_t *member;
    bool first = true;
    size_t i;
    if (json_is_string(v)) {
        (void)buf_printf(out, "%s", json_string_value(v));
    } else if (json_is_array(v)) {
        (void)buf_printf(out, "[");
        json_array_foreach((json_t *)v, i, member)
        {
            (void)buf_append(out, " ", i > 0);
            print_value(out, member);
        }
        (void)buf_printf(out, "]");
    } else if (json_is_object(v)) {
        (void)buf_printf(out, "map[");
        json_object_foreach((json_t *)v, key, member)
        {
            (void)buf_printf(out, "%s%s:", first ? "" : " ", key);
            print_value(out, member);
            first = false;
        }
        (void)buf_printf(out, "]");
    } else if (!v || json_is_null(v)) {
        (void)buf_printf(out, "<no value>");
    } else {
        AUTO_FREE char *text = json_dumps(v, JSON_ENCODE_ANY);
        (void)buf_printf(out, "%s", text ? text : "");
    }
}

static bool is_true(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_STRING:
        return json_string_length(v) > 0;
    case JSON_ARRAY:
        return json_array_size(v) > 0;
    case JSON_OBJECT:
        return json_object_size(v) > 0;
    case JSON_INTEGER:
        return json_integer_value(v) != 0;
    default:
        return json_is_true(v) || json_is_real(v);
    }
}

/* --- expressions ----------------------------------------------------------------------------- */

static void skip_space(struct run *r)
{
    while (r->p < r->end && isspace((unsigned char)*r->p))
        r->p++;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static size_t word_length(const struct run *r)
{
    size_t n = 0;
    while (r->p + n < r->end && is_word(r->p[n]))
        n++;
    return n;
}

/* .A.B after a value; takes and returns a reference. */
static json_t *walk_path(struct run *r, json_t *v)
{
    while (v && r->p < r->end && *r->p == '.') {
        char name[NAME_MAX_LEN];
        const char *start = r->p++;
        size_t n = word_length(r);
        if (n == 0 && start + 1 == r->p && (r->p == r->end || !is_word(*r->p)))
            return v; /* the dot alone */
        (void)snprintf(name, sizeof(name), "%.*s", (int)n, r->p);
        json_t *member = json_object_get(v, name);
        if (!member) {
            (void)err_set(r->e, EINVAL, "template: there is no field .%s", name);
            json_decref(v);
            return NULL;
        }
        r->p += n;
        json_incref(member);
        json_decref(v);
        v = member;
    }
    return v;
}

static json_t *read_string(struct run *r)
{
    char quote = *r->p++;
    const char *start = r->p;
    while (r->p < r->end && *r->p != quote)
        r->p++;
    if (r->p == r->end) {
        (void)wrong(r, "an unterminated string");
        return NULL;
    }
    return json_stringn(start, (size_t)(r->p++ - start));
}

static json_t *read_variable(struct run *r)
{
    r->p++;
    size_t n = word_length(r);
    const char *name = r->p;
    r->p += n;
    if (n == 0)
        return walk_path(r, json_incref(r->root));
    for (size_t i = r->n_vars; i-- > 0;)
        if (r->vars[i].len == n && memcmp(r->vars[i].name, name, n) == 0)
            return walk_path(r, json_incref(r->vars[i].v));
    (void)wrong(r, "an unknown variable");
    return NULL;
}

static json_t *eval(struct run *r);

static json_t *read_parenthesis(struct run *r)
{
    r->p++;
    json_t *v = eval(r);
    skip_space(r);
    if (v && (r->p == r->end || *r->p != ')')) {
        (void)wrong(r, "an unclosed parenthesis");
        json_decref(v);
        return NULL;
    }
    r->p++;
    return v ? walk_path(r, v) : NULL;
}

static json_t *read_number(struct run *r)
{
    char *after;
    long long n = strtoll(r->p, &after, 10);
    r->p = after;
    return json_integer(n);
}

/* One operand; NULL with e set if it is not one. */
static json_t *read_term(struct run *r)
{
    skip_space(r);
    if (r->p == r->end) {
        (void)wrong(r, "a value is missing");
        return NULL;
    }
    if (*r->p == '.')
        return walk_path(r, json_incref(r->dot));
    if (*r->p == '"' || *r->p == '`')
        return read_string(r);
    if (*r->p == '$')
        return read_variable(r);
    if (*r->p == '(' && r->depth < DEPTH_MAX) {
        r->depth++;
        json_t *v = read_parenthesis(r);
        r->depth--;
        return v;
    }
    if (isdigit((unsigned char)*r->p))
        return read_number(r);
    size_t n = word_length(r);
    bool yes = n == 4 && memcmp(r->p, "true", 4) == 0;
    if (yes || (n == 5 && memcmp(r->p, "false", 5) == 0)) {
        r->p += n;
        return json_boolean(yes);
    }
    (void)wrong(r, "unsupported syntax");
    return NULL;
}

/* --- functions ------------------------------------------------------------------------------- */

struct call {
    json_t *arg[ARGS_MAX];
    size_t n;
};

static json_t *do_json(const struct call *c)
{
    AUTO_FREE char *text = json_dumps(c->arg[0], JSON_ENCODE_ANY | JSON_COMPACT);
    return text ? json_string(text) : NULL;
}

/* For a map without that key, Go's zero value: an empty string. */
static json_t *do_index(const struct call *c)
{
    json_t *v = c->arg[0];
    for (size_t i = 1; v && i < c->n; i++)
        v = json_is_integer(c->arg[i])
                ? json_array_get(v, (size_t)json_integer_value(c->arg[i]))
                : json_object_get(v, json_is_string(c->arg[i]) ? json_string_value(c->arg[i]) : "");
    return v ? json_incref(v) : json_string("");
}

static json_t *do_len(const struct call *c)
{
    json_t *v = c->arg[0];
    size_t n = json_is_string(v)  ? json_string_length(v)
               : json_is_array(v) ? json_array_size(v)
                                  : json_object_size(v);
    return json_integer((json_int_t)n);
}

static json_t *do_join(const struct call *c)
{
    AUTO_BUF struct buf b = {.limit = 1 << 20};
    json_t *v;
    size_t i;
    json_array_foreach(c->arg[0], i, v)
    {
        if (i && c->n > 1 && json_is_string(c->arg[1]))
            (void)buf_printf(&b, "%s", json_string_value(c->arg[1]));
        print_value(&b, v);
    }
    return json_stringn(buf_len(&b) ? (const char *)buf_head(&b) : "", buf_len(&b));
}

static json_t *change_case(const struct call *c, int (*to)(int))
{
    AUTO_FREE char *text = strdup(json_is_string(c->arg[0]) ? json_string_value(c->arg[0]) : "");
    for (char *p = text; p && *p; p++)
        *p = (unsigned char)*p < 0x80 ? (char)to(*p) : *p;
    return text ? json_string(text) : NULL;
}

static json_t *do_upper(const struct call *c)
{
    return change_case(c, toupper);
}

static json_t *do_lower(const struct call *c)
{
    return change_case(c, tolower);
}

static json_t *do_eq(const struct call *c)
{
    return json_boolean(c->n > 1 && json_equal(c->arg[0], c->arg[1]));
}

static json_t *do_ne(const struct call *c)
{
    return json_boolean(c->n > 1 && !json_equal(c->arg[0], c->arg[1]));
}

static json_t *do_not(const struct call *c)
{
    return json_boolean(!is_true(c->arg[0]));
}

static json_t *do_println(const struct call *c)
{
    AUTO_BUF struct buf b = {.limit = 1 << 20};
    for (size_t i = 0; i < c->n; i++) {
        (void)buf_append(&b, " ", i > 0);
        print_value(&b, c->arg[i]);
    }
    (void)buf_printf(&b, "\n");
    return json_stringn((const char *)buf_head(&b), buf_len(&b));
}

static const struct function {
    const char *name;
    json_t *(*fn)(const struct call *);
    size_t least;
} functions[] = {
    {"json", do_json, 1},   {"index", do_index, 2},     {"len", do_len, 1}, {"join", do_join, 2},
    {"upper", do_upper, 1}, {"lower", do_lower, 1},     {"eq", do_eq, 2},   {"ne", do_ne, 2},
    {"not", do_not, 1},     {"println", do_println, 0},
};

static const struct function *find_function(struct run *r)
{
    skip_space(r);
    size_t n = word_length(r);
    for (size_t i = 0; i < ARRAY_LEN(functions); i++)
        if (strlen(functions[i].name) == n && memcmp(functions[i].name, r->p, n) == 0) {
            r->p += n;
            return &functions[i];
        }
    return NULL;
}

static bool at_end(struct run *r)
{
    skip_space(r);
    return r->p == r->end || *r->p == '|' || *r->p == ')';
}

/* A function with its arguments, or a value; `piped`, if set, is the last argument. */
static json_t *eval_command(struct run *r, json_t *piped)
{
    const struct function *f = find_function(r);
    struct call c = {0};
    json_t *v = NULL;
    bool ok = true;
    while (ok && !at_end(r)) {
        ok = c.n < ARGS_MAX - 1;
        json_t *arg = ok ? read_term(r) : NULL;
        ok = ok && arg;
        if (ok)
            c.arg[c.n++] = arg;
    }
    if (piped)
        c.arg[c.n++] = json_incref(piped);
    if (ok && f && c.n >= f->least)
        v = f->fn(&c);
    else if (ok && !f && !piped && c.n == 1)
        v = json_incref(c.arg[0]);
    else if (ok && !f && !piped && c.n == 2) /* a method: .Label "k" */
        v = do_index(&c);
    if (!v && r->e && !r->e->code)
        (void)wrong(r, "unsupported syntax");
    for (size_t i = 0; i < c.n; i++)
        json_decref(c.arg[i]);
    return v;
}

static json_t *eval(struct run *r)
{
    json_t *v = eval_command(r, NULL);
    while (v && r->p < r->end && *r->p == '|') {
        r->p++;
        json_t *next = eval_command(r, v);
        json_decref(v);
        v = next;
    }
    return v;
}

/* --- the template ---------------------------------------------------------------------------- */

enum stop { STOP_END, STOP_ELSE, STOP_TEXT_END };

static int block(struct run *r, enum stop *why);

/* Prints the text up to the next action, which becomes r->p .. r->end. 0: there is none. */
static int next_action(struct run *r)
{
    const char *open = strstr(r->at, "{{");
    const char *text_end = open ? open : r->at + strlen(r->at);
    bool trim = open && open[2] == '-';
    const char *last = text_end;
    while (trim && last > r->at && isspace((unsigned char)last[-1]))
        last--;
    if (r->out && buf_append(r->out, r->at, (size_t)(last - r->at)) < 0)
        return err_oom(r->e);
    if (!open)
        return 0;
    const char *close = strstr(open, "}}");
    r->p = open + 2 + trim;
    r->end = close ? close : r->p + strlen(r->p);
    if (!close)
        return wrong(r, "the closing braces are missing");
    r->at = close + 2;
    if (++r->steps > STEPS_MAX)
        return wrong(r, "too many steps");
    if (r->end > r->p && r->end[-1] == '-') {
        r->end--;
        r->at += strspn(r->at, " \t\n");
    }
    return 1;
}

static bool keyword(struct run *r, const char *word)
{
    skip_space(r);
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n) != 0 || word_length(r) != n)
        return false;
    r->p += n;
    return true;
}

/* Renders up to {{else}} or {{end}} with another dot, or skips it. */
static int branch(struct run *r, json_t *dot, bool print, enum stop *why)
{
    json_t *was = r->dot;
    struct buf *out = r->out;
    r->dot = dot;
    r->out = print ? out : NULL;
    int k = r->depth++ < DEPTH_MAX ? block(r, why) : wrong(r, "too many levels");
    r->depth--;
    r->dot = was;
    r->out = out;
    if (k == 0 && *why == STOP_TEXT_END)
        return wrong(r, "{{end}} is missing");
    return k;
}

static int run_else(struct run *r, bool print, enum stop *why)
{
    return *why == STOP_ELSE ? branch(r, r->dot, print, why) : 0;
}

static int do_if(struct run *r)
{
    enum stop why = STOP_END;
    json_t *v = r->out ? eval(r) : json_null();
    if (!v)
        return -EINVAL;
    bool yes = is_true(v);
    json_decref(v);
    int k = branch(r, r->dot, r->out && yes, &why);
    return k < 0 ? k : run_else(r, r->out && !yes, &why);
}

/* "$v :=" or "$k, $v :=": how many. */
static size_t declared(struct run *r, struct var names[2])
{
    const char *start = r->p;
    size_t n = 0;
    for (skip_space(r); n < 2 && r->p < r->end && *r->p == '$'; n++) {
        r->p++;
        names[n] = (struct var){.name = r->p, .len = word_length(r)};
        r->p += names[n].len;
        skip_space(r);
        if (r->p < r->end && *r->p == ',')
            r->p++;
        skip_space(r);
    }
    if (n && r->end - r->p > 2 && memcmp(r->p, ":=", 2) == 0) {
        r->p += 2;
        return n;
    }
    r->p = start;
    return 0;
}

struct loop {
    struct var names[2];
    size_t n_names;
    const char *body;
    enum stop why;
};

static int one_round(struct run *r, struct loop *l, json_t *key, json_t *value)
{
    size_t had = r->n_vars;
    for (size_t i = 0; i < l->n_names && r->n_vars < VARS_MAX; i++) {
        r->vars[r->n_vars] = l->names[i];
        r->vars[r->n_vars++].v = i + 1 == l->n_names ? value : key;
    }
    r->at = l->body;
    int k = branch(r, value, true, &l->why);
    r->n_vars = had;
    json_decref(key);
    return k;
}

static int do_range(struct run *r)
{
    struct loop l = {.why = STOP_END};
    l.n_names = declared(r, l.names);
    AUTO_JSON json_t *v = r->out ? eval(r) : json_null();
    const char *name;
    json_t *member;
    size_t i;
    int k = 0;
    if (!v)
        return -EINVAL;
    l.body = r->at;
    json_array_foreach(v, i, member)
    {
        if (k == 0)
            k = one_round(r, &l, json_integer((json_int_t)i), member);
    }
    json_object_foreach(v, name, member)
    {
        if (k == 0)
            k = one_round(r, &l, json_string(name), member);
    }
    bool none = json_array_size(v) == 0 && json_object_size(v) == 0;
    if (k == 0 && none)
        k = branch(r, r->dot, false, &l.why);
    return k < 0 ? k : run_else(r, none && r->out, &l.why);
}

static int print_action(struct run *r)
{
    if (!r->out)
        return 0;
    AUTO_JSON json_t *v = eval(r);
    if (!v)
        return r->e->code ? -r->e->code : err_oom(r->e);
    if (!at_end(r) || r->p != r->end)
        return wrong(r, "unsupported syntax");
    print_value(r->out, v);
    return 0;
}

static int block(struct run *r, enum stop *why)
{
    int k;
    while ((k = next_action(r)) == 1) {
        if (keyword(r, "end") || keyword(r, "else")) {
            *why = r->p[-1] == 'd' ? STOP_END : STOP_ELSE;
            skip_space(r);
            return r->p == r->end ? 0 : wrong(r, "unsupported syntax");
        }
        k = keyword(r, "if") ? do_if(r) : keyword(r, "range") ? do_range(r) : print_action(r);
        if (k < 0)
            return k;
    }
    *why = STOP_TEXT_END;
    return k;
}

int template_render(const char *text, json_t *value, struct buf *out, struct err *e)
{
    struct run r = {
        .at = text, .p = text, .end = text, .root = value, .dot = value, .out = out, .e = e};
    enum stop why;
    int k = block(&r, &why);
    if (k == 0 && why != STOP_TEXT_END)
        return err_set(e, EINVAL, "template: {{end}} or {{else}} without a beginning");
    return k;
}
