/* What people who know other tools type: a table of words, and what to do here instead. Words that
 * msb can support are alternative spellings in the command table; these it cannot. */
#pragma once

#include "cli/core/cmd.h"

/* A sentence about a verb that msb does not have; NULL if the word is unknown. */
const char *habit_of_verb(const char *word);
/* The same for a verb's option, as typed: "--gpus", "--gpus=all", "-P". */
const char *habit_of_option(const struct cmd *c, const char *word);
