/* Which engine a sandbox asks for. */
#ifndef MSB_ENGINE_KIND_H
#define MSB_ENGINE_KIND_H

enum engine_kind { ENGINE_AUTO, ENGINE_KVM, ENGINE_UML, ENGINE_UML_PTRACE, ENGINE_INVALID = -22 };

const char *engine_kind_name(enum engine_kind k);
enum engine_kind engine_kind_parse(const char *s); /* ENGINE_INVALID */

#endif
