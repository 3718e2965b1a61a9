/* A doubly linked list of nodes that are embedded in their owners; a list head, or a node in no
 * list, points to itself. */
#pragma once

#include <stdbool.h>

struct node {
    struct node *prev, *next;
};

static inline void node_init(struct node *n)
{
    n->prev = n->next = n;
}
static inline bool node_linked(const struct node *n)
{
    return n->next != n;
}
static inline void node_unlink(struct node *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    node_init(n);
}
static inline void node_append(struct node *head, struct node *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}
