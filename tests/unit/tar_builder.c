#include <stdint.h>

#include "tar_builder.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tb_raw(struct tb *b, const void *p, size_t n)
{
    if (b->len + n > b->cap) {
        b->cap = (b->len + n) * 2;
        b->p = realloc(b->p, b->cap);
        assert_non_null(b->p);
    }
    if (n)
        memcpy(b->p + b->len, p, n);
    b->len += n;
}

static void pad(struct tb *b)
{
    static const uint8_t zero[512];
    tb_raw(b, zero, (512 - b->len % 512) % 512);
}

static void octal(uint8_t *p, int width, uint64_t v)
{
    if (v >> (3 * (width - 1))) { /* GNU's base-256 form */
        memset(p, 0, (size_t)width);
        p[0] = 0x80;
        for (int i = width - 1; i > 0 && v; i--, v >>= 8)
            p[i] = (uint8_t)v;
        return;
    }
    for (int i = width - 2; i >= 0; i--, v >>= 3)
        p[i] = (uint8_t)('0' + (v & 7));
}

void tb_add(struct tb *b, struct tb_entry e)
{
    if (b->pax) { /* all records of an entry go into one header */
        struct tb *pax = b->pax;
        b->pax = NULL;
        tb_add(b, (struct tb_entry){
                      .name = "PaxHeader", .type = 'x', .size = pax->len, .data = pax->p});
        tb_free(pax);
        free(pax);
    }
    uint8_t h[512] = {0};
    memcpy(h, e.name, strnlen(e.name, 100));
    octal(h + 100, 8, e.mode ? e.mode : 0644);
    octal(h + 108, 8, e.uid);
    octal(h + 116, 8, e.gid);
    octal(h + 124, 12, e.size);
    octal(h + 136, 12, e.mtime);
    memset(h + 148, ' ', 8);
    h[156] = (uint8_t)e.type;
    if (e.link)
        memcpy(h + 157, e.link, strnlen(e.link, 100));
    memcpy(h + 257, "ustar\00000", 8);
    octal(h + 329, 8, e.major);
    octal(h + 337, 8, e.minor);
    unsigned sum = 0;
    for (int i = 0; i < 512; i++)
        sum += h[i];
    char text[16];
    (void)snprintf(text, sizeof(text), "%06o", sum & 0777777);
    memcpy(h + 148, text, 6);
    h[154] = '\0';
    tb_raw(b, h, sizeof(h));
    if (e.data) {
        tb_raw(b, e.data, e.size);
        pad(b);
    }
}

void tb_pax(struct tb *b, const char *key, const void *value, size_t len)
{
    size_t body = strlen(key) + len + 3, total = body + 1; /* blank, '=', newline, digits */
    for (size_t digits = 1, ten = 10; total >= ten; ten *= 10)
        total = body + ++digits;
    uint8_t *rec = malloc(total + 1);
    assert_non_null(rec);
    int n = snprintf((char *)rec, total + 1, "%zu %s=", total, key);
    memcpy(rec + n, value, len);
    rec[total - 1] = '\n';
    if (!b->pax)
        b->pax = calloc(1, sizeof(*b->pax));
    assert_non_null(b->pax);
    tb_raw(b->pax, rec, total);
    free(rec);
}

void tb_pax_global(struct tb *b, const char *key, const char *value)
{
    struct tb record = {0};
    tb_pax(&record, key, value, strlen(value));
    tb_add(b,
           (struct tb_entry){
               .name = "GlobalHead", .type = 'g', .data = record.pax->p, .size = record.pax->len});
    tb_free(record.pax);
    free(record.pax);
}

void tb_end(struct tb *b)
{
    static const uint8_t zero[1024];
    pad(b);
    tb_raw(b, zero, sizeof(zero));
}

void tb_free(struct tb *b)
{
    free(b->p);
    *b = (struct tb){0};
}
