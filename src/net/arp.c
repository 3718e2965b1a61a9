/* ARP: the guest learns one neighbor, the gateway, and cannot claim any address but its own.
 * Neighbor discovery for IPv6 is in icmp.c. */
#include "net/net_impl.h"

void arp_input(struct net *n, const struct packet *p)
{
    static const uint8_t ether_v4[6] = {0, 1, 8, 0, 6, 4};
    const uint8_t *a = p->head + LINK_ETH;
    /* Exactly: a request, from the guest's own addresses, for the gateway's. */
    if (p->head_len < LINK_ETH + 28 || memcmp(a, ether_v4, 6) != 0 || be16(a + 6) != 1 ||
        memcmp(a + 8, n->cfg.guest_mac, 6) != 0 ||
        memcmp(a + 24, addr_bytes4(&n->cfg.gateway4), 4) != 0) {
        n->stats.dropped[PACKET_TYPE]++;
        return;
    }
    uint8_t f[LINK_ETH + 28];
    memcpy(f, n->cfg.guest_mac, 6);
    memcpy(f + 6, n->cfg.gateway_mac, 6);
    put16(f + 12, ETHERTYPE_ARP_);
    uint8_t *r = f + LINK_ETH;
    memcpy(r, ether_v4, 6);
    put16(r + 6, 2);
    memcpy(r + 8, n->cfg.gateway_mac, 6);
    memcpy(r + 14, addr_bytes4(&n->cfg.gateway4), 4);
    memcpy(r + 18, a + 8, 10); /* the sender's addresses */
    (void)out_frame(n, f, sizeof(f), NULL, 0);
}
