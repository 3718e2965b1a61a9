/* Runs the attack that the command line names. */
#include "attacks.h"

void run_attack(const char *name);

static const struct {
    const char *name;
    void (*fn)(void);
} attacks[] = {
#define ATTACK(name, expected) {#name, name},
#include "attacks.def"
#undef ATTACK
};

static bool same(const char *word, const char *name)
{
    while (*name && *word == *name)
        word++, name++;
    return !*name && (!*word || *word == ' ');
}

void run_attack(const char *name)
{
    for (unsigned i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++)
        if (same(name, attacks[i].name)) {
            say("evil: ");
            say(attacks[i].name);
            say("\n");
            attacks[i].fn();
            return;
        }
    fail("no such attack");
}
