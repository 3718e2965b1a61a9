/* Templates as Docker's clients write them for --format: the part of Go's text/template that they
 * use.
 *
 *     {{.State.Status}}  {{json .}}  {{index .Config.Labels "k"}}  {{.Label "k"}}
 *     {{range .Mounts}}...{{end}}  {{range $k, $v := .Ports}}...{{end}}
 *     {{if .State.Running}}...{{else}}...{{end}}  {{len .Args}}  {{join .Args " "}}  {{.Id | upper}}
 *
 * The current value is JSON. Names are as in that JSON; a missing one is an error, as with Docker's
 * structs.
 */
#pragma once

#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>

/* Appends the result, without a newline. EINVAL: the template is wrong, or refers to something
 * missing. */
int template_render(const char *text, json_t *value, struct buf *out, struct err *e);
