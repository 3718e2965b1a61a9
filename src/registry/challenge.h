/* WWW-Authenticate: how a registry wants to be asked. */
#ifndef MSB_REGISTRY_CHALLENGE_H
#define MSB_REGISTRY_CHALLENGE_H

enum challenge_scheme { CHALLENGE_NONE, CHALLENGE_BASIC, CHALLENGE_BEARER };

struct challenge {
    enum challenge_scheme scheme;
    char *realm, *service, *scope; /* NULL where nothing was said */
};

/* The best of the challenges in a header (several headers may be joined by commas): Bearer before
 * Basic; CHALLENGE_NONE when neither is there. Text from a stranger: control characters in values
 * make it worthless. -ENOMEM, or -EINVAL when it cannot be read; *ret is then empty. */
int challenge_parse(const char *header, struct challenge *ret);
void challenge_free(struct challenge *c);

#endif
