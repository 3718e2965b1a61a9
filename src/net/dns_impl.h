/* Shared by dns.c (questions and answers) and dns_client.c (connections of the guest). */
#pragma once

#include "net/dns.h"
#include "util/bucket.h"
#include "util/buf.h"
#include "util/list.h"

struct dns_client;

/* Where an answer goes: a port of the guest, or one of its connections. */
struct dns_asker {
    struct net_end guest, gateway;
    struct dns_client *client;
};

struct dns_query {
    struct dns *d;
    struct node all;
    struct dns_question q;
    struct dns_asker asker;
    struct policy_answer answer;
    uint16_t id; /* the one that we chose */
    unsigned upstream;
    bool tcp;
    struct socks *socks; /* while a proxy is being asked */
    struct loop_src src;
    struct loop_timer timer;
    struct buf in; /* TCP: received so far */
    uint8_t out[2 + DNS_UDP_PLAIN];
    size_t out_len, out_done;
};

struct dns {
    struct loop *loop;
    struct dns_config cfg;
    const struct policy *policy;
    struct pins *pins;
    const struct dns_hooks *hooks;
    void *ctx;
    struct dns_stats stats;
    struct node queries, clients;
    unsigned n_queries, n_clients;
    struct bucket rate; /* of questions upstream */
    uint8_t msg[DNS_MSG_MAX], reply[2 + DNS_MSG_MAX];
};

/* dns.c */
void dns_ask(struct dns *d, const struct dns_asker *a, const uint8_t *p, size_t n);
/* Drops the questions of a connection that is gone. */
void dns_forget(struct dns *d, const struct dns_client *c);

/* dns_client.c */
void dns_client_reply(struct dns_client *c, const uint8_t *p, size_t n);
void dns_clients_free(struct dns *d);
