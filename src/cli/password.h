/* What nobody may see over a shoulder or in `ps`: from standard input, or asked for on the terminal
 * without echo. */
#ifndef MSB_CLI_PASSWORD_H
#define MSB_CLI_PASSWORD_H

#include "util/err.h"

#include <stddef.h>

/* Each returns a malloc'd text that the caller wipes (password_free): at least one and at most
 * `max` bytes, without NUL and without the newline at its end. `what` is for messages: "password".
 */
int password_from_stdin(const char *what, size_t max, char **ret, struct err *e);
int password_ask(const char *question, const char *what, size_t max, char **ret, struct err *e);
void password_free(char *text);

#endif
