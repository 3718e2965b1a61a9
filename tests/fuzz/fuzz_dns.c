/* DNS messages from both sides: read, written anew, and read again. */
#include "net/dns_msg.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was accepted as a question can be asked, and reads back the same. */
static void question(const uint8_t *p, size_t n)
{
    struct dns_question q, again;
    uint8_t out[DNS_UDP_PLAIN];
    if (dns_read_question(p, n, &q) != 0)
        return;
    size_t len = dns_write_question(out, 7, q.name, q.type);
    if (len == 0 || len > sizeof(out) || dns_read_question(out, len, &again) != 0 ||
        strcmp(q.name, again.name) != 0 || again.type != q.type)
        abort();
}

/* Records that were accepted survive being written. */
static void answer(const uint8_t *p, size_t n)
{
    static uint8_t out[DNS_MSG_MAX];
    struct dns_question q = {.id = (uint16_t)(p[0] << 8 | p[1]), .type = DNS_A, .name = "a.b"};
    struct dns_reader r, s;
    struct dns_record rec, again;
    struct dns_writer w;
    int k;
    if (dns_read_answer(&r, p, n, q.id, q.name, q.type) < 0)
        return;
    while ((k = dns_next(&r, &rec)) > 0) {
        if (k != 1)
            continue;
        dns_begin(&w, out, sizeof(out), &q, 0);
        dns_put_record(&w, &rec, false);
        size_t len = dns_end(&w, &q);
        if (len > sizeof(out) || dns_read_answer(&s, out, len, q.id, q.name, q.type) < 0 ||
            dns_next(&s, &again) != 1 || memcmp(&rec, &again, sizeof(rec)) != 0)
            abort();
        dns_begin(&w, out, 64, &q, 0); /* too small for most */
        dns_put_record(&w, &rec, false);
        if (dns_end(&w, &q) > 64)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *p = malloc(size + 1); /* exact ends for the sanitizer */
    if (!p)
        abort();
    memcpy(p, data, size);
    question(p, size);
    if (size >= 2)
        answer(p, size);
    free(p);
    return 0;
}
