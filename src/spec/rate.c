#include "spec/rate.h"

#include "spec/read.h"
#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"

#include <inttypes.h>
#include <stdio.h>

enum { SECOND_MS = 1000 };

static bool period_ok(uint64_t ms)
{
    return ms >= RATE_PERIOD_MIN_MS && ms <= RATE_PERIOD_MAX_S * 1000ULL;
}

/* SIZE or COUNT, not 0. */
static int parse_amount(const char *text, bool bytes, uint64_t *ret)
{
    int r = bytes ? parse_size(text, 1, ret) : parse_u64(text, ret);
    if (r < 0)
        return r;
    return *ret == 0 || *ret > SPEC_RATE_MAX ? -ERANGE : 0;
}

/* A unit alone means one of it. */
static int parse_period(const char *text, uint64_t *ret)
{
    static const struct {
        const char *unit;
        uint64_t ms;
    } units[] = {{"s", 1000}, {"m", 60000}, {"h", 3600000}};
    for (size_t i = 0; i < ARRAY_LEN(units); i++)
        if (strcmp(text, units[i].unit) == 0) {
            *ret = units[i].ms;
            return 0;
        }
    return parse_duration_ms(text, ret);
}

int spec_rate_parse(const char *text, bool bytes, struct rate_limit *ret)
{
    AUTO_FREE char *s = strdup(text);
    struct rate_limit l = {.period_ms = SECOND_MS, .burst = ret->burst};
    if (!s)
        return -ENOMEM;
    char *slash = strchr(s, '/');
    if (slash)
        *slash++ = '\0';
    int r = parse_amount(s, bytes, &l.amount);
    if (r == 0 && slash)
        r = parse_period(slash, &l.period_ms);
    if (r == 0 && !period_ok(l.period_ms))
        r = -ERANGE;
    if (r == 0)
        *ret = l;
    return r;
}

int spec_rate_parse_burst(const char *text, bool bytes, struct rate_limit *ret)
{
    return parse_amount(text, bytes, &ret->burst);
}

static void format_amount(uint64_t n, bool bytes, char *out, size_t size)
{
    if (bytes)
        format_bytes(n, out, size);
    else
        (void)snprintf(out, size, "%" PRIu64 " packets", n);
}

void spec_rate_format(const struct rate_limit *l, bool bytes, char out[SPEC_RATE_TEXT_MAX])
{
    char amount[SPEC_RATE_TEXT_MAX / 2], period[SPEC_RATE_TEXT_MAX / 2] = "s",
                                                                     burst[SPEC_RATE_TEXT_MAX / 2];
    format_amount(l->amount, bytes, amount, sizeof(amount));
    if (l->period_ms != SECOND_MS)
        format_duration(l->period_ms, period, sizeof(period));
    int n = snprintf(out, SPEC_RATE_TEXT_MAX, "%s/%s", amount, period);
    if (l->burst > 0 && n > 0) {
        format_amount(l->burst, bytes, burst, sizeof(burst));
        (void)snprintf(out + n, (size_t)SPEC_RATE_TEXT_MAX - (size_t)n, ", burst %s", burst);
    }
}

/* --- JSON ------------------------------------------------------------------------------------ */

static json_t *limit_json(const struct rate_limit *l)
{
    return json_pack("{s:I, s:I, s:I}", "size", (json_int_t)l->amount, "refill_time_ms",
                     (json_int_t)l->period_ms, "one_time_burst", (json_int_t)l->burst);
}

json_t *spec_rate_to_json(const struct rate_limits *l)
{
    if (l->bytes.amount == 0 && l->packets.amount == 0)
        return json_null();
    json_t *o = json_object();
    if (l->bytes.amount > 0)
        json_put(&o, "bandwidth", limit_json(&l->bytes));
    if (l->packets.amount > 0)
        json_put(&o, "ops", limit_json(&l->packets));
    return o;
}

static int read_limit(const json_t *j, const char *key, struct rate_limit *ret, struct err *e)
{
    const json_t *o;
    struct rate_limit l = {.period_ms = SECOND_MS};
    int r = read_object(j, key, &o, e);
    if (r < 0 || !o)
        return r;
    r = read_u64(o, "size", &l.amount, e);
    if (r == 0)
        r = read_u64(o, "refill_time_ms", &l.period_ms, e);
    if (r == 0)
        r = read_u64(o, "one_time_burst", &l.burst, e);
    if (r < 0)
        return r;
    if (l.amount == 0 || l.amount > SPEC_RATE_MAX || l.burst > SPEC_RATE_MAX ||
        !period_ok(l.period_ms))
        return bad(e, key);
    *ret = l;
    return 0;
}

int spec_rate_from_json(struct rate_limits *l, const json_t *j, struct err *e)
{
    int r = read_limit(j, "bandwidth", &l->bytes, e);
    return r < 0 ? r : read_limit(j, "ops", &l->packets, e);
}
