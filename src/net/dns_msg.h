/* DNS messages: parsing questions and answers, and writing new ones.
 *
 * No message is forwarded as is. The name and type of the guest's question are read and checked,
 * and a new question is written from them. The records of a server's answer are read one by one,
 * those of known types are kept, and a new answer is written from them. So what can hide in a DNS
 * message (odd types, odd labels, extra sections, padding) does not pass.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DNS_NAME_MAX = 254, /* as text, with its zero */
    DNS_MSG_MAX = 16 * 1024,
    DNS_UDP_PLAIN = 512,
    DNS_UDP_MAX = 4096,
    DNS_RECORDS_MAX = 128,
};

enum {
    DNS_A = 1,
    DNS_NS = 2,
    DNS_CNAME = 5,
    DNS_SOA = 6,
    DNS_PTR = 12,
    DNS_MX = 15,
    DNS_AAAA = 28,
    DNS_SRV = 33,
    DNS_OPT = 41,
    DNS_SVCB = 64,
    DNS_HTTPS = 65,
};
enum {
    DNS_NOERROR = 0,
    DNS_FORMERR = 1,
    DNS_SERVFAIL = 2,
    DNS_NXDOMAIN = 3,
    DNS_NOTIMP = 4,
    DNS_REFUSED = 5,
};

struct dns_question {
    uint16_t id;
    uint16_t type;
    bool recursion;
    bool edns;
    uint16_t udp_size;       /* the largest answer that fits */
    char name[DNS_NAME_MAX]; /* lower case, no final dot; "" is the root */
};

/* A record that can be passed on. */
struct dns_record {
    char name[DNS_NAME_MAX];
    uint16_t type;
    uint32_t ttl;
    uint16_t num[3];           /* MX: preference; SRV: priority, weight, port */
    uint8_t addr[16];          /* A, AAAA */
    char target[DNS_NAME_MAX]; /* NS, CNAME, PTR, MX, SRV; SOA: the server */
    char mail[DNS_NAME_MAX];   /* SOA */
    uint8_t soa[20];
};

/* 0, or the code to answer with: DNS_FORMERR, DNS_NOTIMP; -1: do not answer. q->id is set
 * unless -1. */
int dns_read_question(const uint8_t *p, size_t n, struct dns_question *q);
/* Writes our question and returns its length. out has DNS_UDP_PLAIN bytes. */
size_t dns_write_question(uint8_t *out, uint16_t id, const char *name, uint16_t type);

/* Reads an answer to our question: 0 if it is one, else -EBADMSG. */
struct dns_reader {
    const uint8_t *p;
    size_t n, at;
    unsigned left;      /* records in the answer section */
    unsigned authority; /* and in the next */
    uint8_t rcode;
    bool truncated;
};
int dns_read_answer(struct dns_reader *r, const uint8_t *p, size_t n, uint16_t id, const char *name,
                    uint16_t type);
/* 1: *rec is filled in; 2: a record that must not be passed on, for its type or content; 0: the end
 * of the section; -EBADMSG. */
int dns_next(struct dns_reader *r, struct dns_record *rec);

/* Writes an answer for the guest. */
struct dns_writer {
    uint8_t *p;
    size_t n, max;
    uint16_t answers, authority;
    bool over; /* something did not fit */
};
void dns_begin(struct dns_writer *w, uint8_t *p, size_t max, const struct dns_question *q,
               uint8_t rcode);
void dns_put_record(struct dns_writer *w, const struct dns_record *rec, bool authority);
/* Returns the total length. If something did not fit, the answer is empty and marked as
 * truncated. */
size_t dns_end(struct dns_writer *w, const struct dns_question *q);
