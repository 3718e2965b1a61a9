#include "logs/line.h"

#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"
#include "util/words.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NS_DIGITS = 9, YEAR_MAX = 2500 };
#define NS_PER_SEC 1000000000ULL

static const char *const source_names[] = {"stdout", "stderr", "output", "system"};

const char *log_source_name(enum log_source s)
{
    return source_names[s];
}

/* --- time --- */

struct cursor {
    const char *p, *end;
};

static bool take(struct cursor *c, char want)
{
    if (c->p == c->end || *c->p != want)
        return false;
    c->p++;
    return true;
}

/* Exactly `digits` digits, with a value from min to max. */
static bool take_number(struct cursor *c, int digits, int min, int max, int *ret)
{
    int v = 0;
    for (int i = 0; i < digits; i++, c->p++) {
        if (c->p == c->end || *c->p < '0' || *c->p > '9')
            return false;
        v = v * 10 + (*c->p - '0');
    }
    *ret = v;
    return v >= min && v <= max;
}

static bool take_date(struct cursor *c, struct tm *tm)
{
    if (!take_number(c, 4, 1970, YEAR_MAX, &tm->tm_year) || !take(c, '-') ||
        !take_number(c, 2, 1, 12, &tm->tm_mon) || !take(c, '-') ||
        !take_number(c, 2, 1, 31, &tm->tm_mday))
        return false;
    tm->tm_year -= 1900;
    tm->tm_mon -= 1;
    return true;
}

/* HH:MM, and :SS with a fraction if present. */
static bool take_clock(struct cursor *c, struct tm *tm, uint64_t *ns)
{
    *ns = 0;
    if (!take_number(c, 2, 0, 23, &tm->tm_hour) || !take(c, ':') ||
        !take_number(c, 2, 0, 59, &tm->tm_min))
        return false;
    if (!take(c, ':'))
        return true;
    if (!take_number(c, 2, 0, 60, &tm->tm_sec))
        return false;
    if (!take(c, '.'))
        return true;
    int digits = 0;
    for (; c->p < c->end && isdigit((unsigned char)*c->p); c->p++, digits++)
        if (digits < NS_DIGITS)
            *ns = *ns * 10 + (uint64_t)(*c->p - '0');
    for (int i = digits; i < NS_DIGITS; i++)
        *ns *= 10;
    return digits > 0;
}

/* Z or +HH:MM; *east in seconds. */
static bool take_zone(struct cursor *c, int *east)
{
    int sign, hours, minutes;
    *east = 0;
    if (take(c, 'Z') || take(c, 'z'))
        return true;
    if (take(c, '+'))
        sign = 1;
    else if (take(c, '-'))
        sign = -1;
    else
        return false;
    if (!take_number(c, 2, 0, 23, &hours) || !take(c, ':') || !take_number(c, 2, 0, 59, &minutes))
        return false;
    *east = sign * (hours * 3600 + minutes * 60);
    return true;
}

static int to_ns(time_t sec, uint64_t ns, uint64_t *ret)
{
    if (sec < 0)
        return -ERANGE;
    *ret = (uint64_t)sec * NS_PER_SEC + ns;
    return 0;
}

/* timegm and mktime normalize the 31st of February: it is refused instead. */
static bool same_day(const struct tm *a, const struct tm *b)
{
    return a->tm_mday == b->tm_mday && a->tm_mon == b->tm_mon;
}

int time_parse_rfc3339(const char *s, size_t n, uint64_t *ret_ns)
{
    struct cursor c = {s, s + n};
    struct tm tm = {0};
    uint64_t ns;
    int east;
    if (!take_date(&c, &tm) || !(take(&c, 'T') || take(&c, 't') || take(&c, ' ')) ||
        !take_clock(&c, &tm, &ns) || !take_zone(&c, &east) || c.p != c.end)
        return -EINVAL;
    struct tm normal = tm;
    time_t sec = timegm(&normal);
    if (tm.tm_sec < 60 && !same_day(&tm, &normal))
        return -EINVAL;
    return to_ns(sec - east, ns, ret_ns);
}

static int parse_local(const char *s, uint64_t *ret_ns)
{
    struct cursor c = {s, s + strlen(s)};
    struct tm tm = {.tm_isdst = -1};
    uint64_t ns = 0;
    if (!take_date(&c, &tm))
        return -EINVAL;
    if (c.p != c.end &&
        (!(take(&c, ' ') || take(&c, 'T')) || !take_clock(&c, &tm, &ns) || c.p != c.end))
        return -EINVAL;
    struct tm normal = tm;
    time_t sec = mktime(&normal);
    if (!same_day(&tm, &normal))
        return -EINVAL;
    return to_ns(sec, ns, ret_ns);
}

int time_parse_when(const char *s, uint64_t now_ns, uint64_t *ret_ns)
{
    uint64_t ms;
    if (parse_duration_ms(s, &ms) == 0) {
        bool before_1970 = ms > now_ns / 1000000;
        *ret_ns = before_1970 ? 0 : now_ns - ms * 1000000;
        return 0;
    }
    int r = time_parse_rfc3339(s, strlen(s), ret_ns);
    return r == -EINVAL ? parse_local(s, ret_ns) : r;
}

/* --- lines --- */

static int decode(struct log_entry *e)
{
    size_t n = e->len;
    if (n % 4 || n > LOG_LINE_MAX)
        return -EINVAL;
    uint8_t *to = malloc(n / 4 * 3 + 1);
    if (!to)
        return -ENOMEM;
    size_t padding = n && e->data[n - 1] == '=' ? 1U + (e->data[n - 2] == '=') : 0;
    int got = n ? EVP_DecodeBlock(to, e->data, (int)n) : 0;
    if (got < 0 ||
        (size_t)got != n / 4 * 3) { /* it trims white space, which is not base64 either */
        free(to);
        return -EINVAL;
    }
    e->decoded = to;
    e->data = to;
    e->len = (size_t)got - padding;
    to[e->len] = '\0';
    return 0;
}

static int read_time(const json_t *j, struct log_entry *e)
{
    json_t *t = json_object_get(j, "t");
    if (!json_is_string(t) || json_string_length(t) >= sizeof(e->t) ||
        time_parse_rfc3339(json_string_value(t), json_string_length(t), &e->t_ns) < 0)
        return -EINVAL;
    memcpy(e->t, json_string_value(t), json_string_length(t) + 1);
    return 0;
}

static int read_members(const json_t *j, struct log_entry *e)
{
    json_t *d = json_object_get(j, "d");
    json_t *id = json_object_get(j, "id"), *enc = json_object_get(j, "e");
    int s = WORD_FIND(source_names, json_string_value(json_object_get(j, "s")));
    if (!json_is_string(d) || s < 0 || read_time(j, e) < 0)
        return -EINVAL;
    e->s = (enum log_source)s;
    if (json_is_integer(id)) {
        json_int_t v = json_integer_value(id);
        if (v < 0 || v > UINT32_MAX)
            return -EINVAL;
        e->id = (uint32_t)v;
    }
    e->data = (const uint8_t *)json_string_value(d);
    e->len = json_string_length(d);
    if (!json_is_string(enc))
        return 0;
    return strcmp(json_string_value(enc), "b64") == 0 ? decode(e) : -EINVAL;
}

static int parse_line(const char *line, size_t n, size_t flags,
                      int (*members)(const json_t *j, struct log_entry *e), struct log_entry *ret)
{
    struct log_entry e = {0};
    json_error_t why;
    if (n > LOG_LINE_MAX)
        return -EINVAL;
    e.json = json_loadb(line, n, flags, &why);
    int r = json_is_object(e.json) ? members(e.json, &e) : -EINVAL;
    if (r < 0) {
        log_entry_free(&e);
        return r;
    }
    *ret = e;
    return 0;
}

int log_line_parse(const char *line, size_t n, struct log_entry *ret)
{
    return parse_line(line, n, JSON_ALLOW_NUL, read_members, ret);
}

int log_record_parse(const char *line, size_t n, struct log_entry *ret)
{
    return parse_line(line, n, 0, read_time, ret);
}

void log_entry_free(struct log_entry *e)
{
    json_decref(e->json);
    free(e->decoded);
    *e = (struct log_entry){0};
}

char *log_entry_json(const struct log_entry *e, bool ascii)
{
    static const char *const members[] = {"d", "e", "id", "s", "t"};
    AUTO_JSON json_t *j = json_object();
    for (size_t i = 0; i < ARRAY_LEN(members); i++) {
        json_t *v = json_object_get(e->json, members[i]);
        if (json_object_set(j, members[i], v ? v : json_null()) < 0)
            return NULL;
    }
    return json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS | (ascii ? JSON_ENSURE_ASCII : 0));
}
