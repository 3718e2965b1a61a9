/* Where records of the audit log are sent as they are written: syslog, the journal, a program.
 *
 * A record goes to the file first. A sink that fails or does not keep up causes one warning, and
 * gets no more records from this process: what it missed is in the file, by number.
 */
#pragma once

#include "store/audit.h"

#include <jansson.h>
#include <stdbool.h>

bool audit_has_sinks(const struct audit_settings *a);
/* line: the record j as in the file. */
void audit_send(const struct audit_settings *a, const json_t *j, const char *line,
                void (*warn)(const char *text));
