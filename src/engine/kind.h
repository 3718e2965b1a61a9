/* Which engine a sandbox asks for. */
#pragma once

enum engine_kind { ENGINE_AUTO, ENGINE_KVM, ENGINE_UML, ENGINE_UML_PTRACE, ENGINE_INVALID = -22 };

const char *engine_kind_name(enum engine_kind k);
enum engine_kind engine_kind_parse(const char *s); /* ENGINE_INVALID */
