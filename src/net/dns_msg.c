#include "net/dns_msg.h"

#include <errno.h>
#include <string.h>

#include "net/packet.h"
#include "util/cleanup.h"

enum { HEAD = 12, LABEL_MAX = 63, JUMPS_MAX = 16, CLASS_IN = 1 };
enum { F_QR = 0x8000, F_TC = 0x0200, F_RD = 0x0100, F_RA = 0x0080 };

/* --- names ----------------------------------------------------------------------------------- */

static bool name_char(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Reads a name at *at, following pointers (only backward, so it ends), and moves *at past it.
 * Labels are letters, digits, hyphens and underscores; any other byte becomes '?', which name_ok
 * refuses and no requested name contains. */
static bool read_name(const uint8_t *p, size_t n, size_t *at, char out[DNS_NAME_MAX])
{
    size_t pos = *at, len = 0, floor = *at;
    bool jumped = false;
    for (unsigned jumps = 0;;) {
        if (pos >= n)
            return false;
        uint8_t k = p[pos];
        if (k >= 0xc0) {
            if (pos + 1 >= n || ++jumps > JUMPS_MAX)
                return false;
            size_t to = (size_t)(k & 0x3f) << 8 | p[pos + 1];
            if (to >= floor)
                return false;
            if (!jumped)
                *at = pos + 2;
            jumped = true;
            pos = floor = to;
            continue;
        }
        if (k == 0)
            break;
        if (k > LABEL_MAX || k > n - pos - 1 || len + (len > 0) + k >= DNS_NAME_MAX)
            return false;
        if (len > 0)
            out[len++] = '.';
        for (unsigned i = 0; i < k; i++) {
            uint8_t c = p[pos + 1 + i];
            c = c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c;
            out[len++] = name_char(c) ? (char)c : '?';
        }
        pos += 1 + k;
    }
    if (!jumped)
        *at = pos + 1;
    out[len] = '\0';
    return true;
}

static bool name_ok(const char *name)
{
    return strchr(name, '?') == NULL;
}

/* The wire form of a name; 0 if it does not fit. */
static size_t write_name(uint8_t *p, size_t max, const char *name)
{
    size_t at = 0;
    while (*name) {
        size_t k = strcspn(name, ".");
        if (k == 0 || k > LABEL_MAX || at + 1 + k + 1 > max)
            return 0;
        p[at] = (uint8_t)k;
        memcpy(p + at + 1, name, k);
        at += 1 + k;
        name += k;
        if (*name == '.')
            name++;
    }
    if (at + 1 > max)
        return 0;
    p[at] = 0;
    return at + 1;
}

/* --- questions ------------------------------------------------------------------------------- */

/* The additional section of a question: an OPT record, or nothing. */
static bool read_opt(const uint8_t *p, size_t n, size_t at, struct dns_question *q)
{
    char name[DNS_NAME_MAX];
    if (!read_name(p, n, &at, name) || name[0] || n - at < 10 || be16(p + at) != DNS_OPT)
        return false;
    size_t len = be16(p + at + 8);
    q->edns = true;
    q->udp_size = MIN(MAX(be16(p + at + 2), DNS_UDP_PLAIN), DNS_UDP_MAX);
    return len <= n - at - 10;
}

int dns_read_question(const uint8_t *p, size_t n, struct dns_question *q)
{
    *q = (struct dns_question){.udp_size = DNS_UDP_PLAIN};
    if (n < HEAD)
        return -1;
    uint16_t flags = be16(p + 2);
    q->id = be16(p);
    q->recursion = flags & F_RD;
    if (flags & F_QR)
        return -1;
    if ((flags >> 11 & 15) != 0)
        return DNS_NOTIMP;
    size_t at = HEAD;
    if (be16(p + 4) != 1 || be16(p + 6) != 0 || be16(p + 8) != 0 || be16(p + 10) > 1 ||
        !read_name(p, n, &at, q->name) || !name_ok(q->name) || n - at < 4)
        return DNS_FORMERR;
    q->type = be16(p + at);
    if (be16(p + at + 2) != CLASS_IN)
        return DNS_NOTIMP;
    if (be16(p + 10) == 1 && !read_opt(p, n, at + 4, q))
        return DNS_FORMERR;
    return 0;
}

size_t dns_write_question(uint8_t *out, uint16_t id, const char *name, uint16_t type)
{
    memset(out, 0, HEAD);
    put16(out, id);
    put16(out + 2, F_RD);
    put16(out + 4, 1);
    put16(out + 10, 1);
    size_t k = write_name(out + HEAD, DNS_UDP_PLAIN - HEAD - 15, name);
    if (k == 0)
        return 0;
    uint8_t *t = out + HEAD + k;
    put16(t, type);
    put16(t + 2, CLASS_IN);
    memset(t + 4, 0, 11); /* OPT: only our buffer size */
    put16(t + 5, DNS_OPT);
    put16(t + 7, 1232);
    return HEAD + k + 15;
}

/* --- answers, read --------------------------------------------------------------------------- */

int dns_read_answer(struct dns_reader *r, const uint8_t *p, size_t n, uint16_t id, const char *name,
                    uint16_t type)
{
    char asked[DNS_NAME_MAX];
    size_t at = HEAD;
    if (n < HEAD || be16(p) != id || !(be16(p + 2) & F_QR) || (be16(p + 2) >> 11 & 15) != 0 ||
        be16(p + 4) != 1 || !read_name(p, n, &at, asked) || n - at < 4 ||
        strcmp(asked, name) != 0 || be16(p + at) != type || be16(p + at + 2) != CLASS_IN)
        return -EBADMSG;
    *r = (struct dns_reader){.p = p,
                             .n = n,
                             .at = at + 4,
                             .left = be16(p + 6),
                             .authority = be16(p + 8),
                             .rcode = p[3] & 15,
                             .truncated = be16(p + 2) & F_TC};
    return 0;
}

/* The part of a record that depends on its type; false if it is malformed. */
static bool read_data(const struct dns_reader *r, size_t at, size_t len, struct dns_record *rec)
{
    const uint8_t *d = r->p + at;
    size_t end = at + len;
    switch (rec->type) {
    case DNS_A:
    case DNS_AAAA:
        if (len != (rec->type == DNS_A ? 4U : 16U))
            return false;
        memcpy(rec->addr, d, len);
        return true;
    case DNS_NS:
    case DNS_CNAME:
    case DNS_PTR:
        return read_name(r->p, end, &at, rec->target) && at == end;
    case DNS_MX:
        if (len < 3)
            return false;
        rec->num[0] = be16(d);
        at += 2;
        return read_name(r->p, end, &at, rec->target) && at == end;
    case DNS_SRV:
        if (len < 7)
            return false;
        for (unsigned i = 0; i < 3; i++)
            rec->num[i] = be16(d + (size_t)2 * i);
        at += 6;
        return read_name(r->p, end, &at, rec->target) && at == end;
    case DNS_SOA:
        if (!read_name(r->p, end, &at, rec->target) || !read_name(r->p, end, &at, rec->mail) ||
            end - at != sizeof(rec->soa))
            return false;
        memcpy(rec->soa, r->p + at, sizeof(rec->soa));
        return true;
    default:
        return false;
    }
}

static bool type_known(uint16_t type)
{
    return type == DNS_A || type == DNS_AAAA || type == DNS_NS || type == DNS_CNAME ||
           type == DNS_PTR || type == DNS_MX || type == DNS_SRV || type == DNS_SOA;
}

int dns_next(struct dns_reader *r, struct dns_record *rec)
{
    if (r->left == 0)
        return 0;
    r->left--;
    memset(rec, 0, sizeof(*rec));
    size_t at = r->at;
    bool named = read_name(r->p, r->n, &at, rec->name);
    if (!named || r->n - at < 10)
        return -EBADMSG;
    rec->type = be16(r->p + at);
    bool in = be16(r->p + at + 2) == CLASS_IN;
    rec->ttl = be32(r->p + at + 4);
    if (rec->ttl > INT32_MAX)
        rec->ttl = 0;
    size_t len = be16(r->p + at + 8);
    at += 10;
    if (len > r->n - at)
        return -EBADMSG;
    r->at = at + len;
    if (!in || !type_known(rec->type))
        return 2;
    bool whole = read_data(r, at, len, rec) && name_ok(rec->name) && name_ok(rec->target) &&
                 name_ok(rec->mail);
    return whole ? 1 : 2;
}

/* --- answers, written ------------------------------------------------------------------------ */

void dns_begin(struct dns_writer *w, uint8_t *p, size_t max, const struct dns_question *q,
               uint8_t rcode)
{
    *w = (struct dns_writer){.p = p, .max = max - (q->edns ? 11 : 0)};
    memset(p, 0, HEAD);
    put16(p, q->id);
    put16(p + 2, (uint16_t)(F_QR | F_RA | (q->recursion ? F_RD : 0) | rcode));
    w->n = HEAD;
    if (rcode == DNS_FORMERR || rcode == DNS_NOTIMP)
        return; /* the question could not be parsed */
    size_t k = write_name(p + HEAD, w->max - HEAD - 4, q->name);
    if (k == 0)
        return;
    put16(p + HEAD + k, q->type);
    put16(p + HEAD + k + 2, CLASS_IN);
    put16(p + 4, 1);
    w->n = HEAD + k + 4;
}

static bool put_bytes(struct dns_writer *w, const void *p, size_t n)
{
    if (n > w->max - w->n)
        return false;
    memcpy(w->p + w->n, p, n);
    w->n += n;
    return true;
}

static bool put_name(struct dns_writer *w, const char *name)
{
    size_t k = write_name(w->p + w->n, w->max - w->n, name);
    w->n += k;
    return k > 0;
}

static bool put_data(struct dns_writer *w, const struct dns_record *rec)
{
    uint8_t num[6];
    for (unsigned i = 0; i < 3; i++)
        put16(num + (size_t)2 * i, rec->num[i]);
    switch (rec->type) {
    case DNS_A:
        return put_bytes(w, rec->addr, 4);
    case DNS_AAAA:
        return put_bytes(w, rec->addr, 16);
    case DNS_MX:
        return put_bytes(w, num, 2) && put_name(w, rec->target);
    case DNS_SRV:
        return put_bytes(w, num, 6) && put_name(w, rec->target);
    case DNS_SOA:
        return put_name(w, rec->target) && put_name(w, rec->mail) &&
               put_bytes(w, rec->soa, sizeof(rec->soa));
    default:
        return put_name(w, rec->target);
    }
}

void dns_put_record(struct dns_writer *w, const struct dns_record *rec, bool authority)
{
    uint8_t head[10];
    size_t start = w->n;
    put16(head, rec->type);
    put16(head + 2, CLASS_IN);
    put32(head + 4, rec->ttl);
    put16(head + 8, 0);
    if (w->over || !put_name(w, rec->name) || !put_bytes(w, head, sizeof(head))) {
        w->over = true;
        w->n = start;
        return;
    }
    size_t data = w->n;
    if (!put_data(w, rec)) {
        w->over = true;
        w->n = start;
        return;
    }
    put16(w->p + data - 2, (uint16_t)(w->n - data));
    *(authority ? &w->authority : &w->answers) += 1;
}

size_t dns_end(struct dns_writer *w, const struct dns_question *q)
{
    if (w->over) { /* only the question, marked as truncated: the guest retries by TCP */
        char name[DNS_NAME_MAX];
        size_t at = HEAD;
        (void)read_name(w->p, w->n, &at, name);
        w->n = at + 4;
        w->answers = w->authority = 0;
        w->p[2] |= F_TC >> 8;
    }
    put16(w->p + 6, w->answers);
    put16(w->p + 8, w->authority);
    if (q->edns) {
        uint8_t *o = w->p + w->n;
        memset(o, 0, 11);
        put16(o + 1, DNS_OPT);
        put16(o + 3, DNS_UDP_MAX);
        put16(w->p + 10, 1);
        w->n += 11;
    }
    return w->n;
}
