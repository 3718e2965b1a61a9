/* The monitor: one process per sandbox, alive exactly as long as the sandbox runs.
 *
 * It boots the guest, serves its devices, relays clients to the agent, keeps logs and timers, and
 * ends when the guest does, leaving the reason in state.json. All of src/monitor runs in the jail:
 * the launcher (launch/launch.h) hands over everything that it will ever need, already open; once
 * its jail is closed it can open nothing outside the sandbox's own run/ directory.
 *
 *     booting ──READY──▶ running ──stop/idle/max duration──▶ draining ──▶ ended (stopped)
 *        └────────────────┴── panic, agent or device lost ──────────────▶ ended (crashed)
 */
#pragma once

#include "monitor/params.h"

/* Runs the sandbox to its end. Called in a new process that is pid 1 of its namespaces, with the
 * sandbox's run/ as its current directory. */
void monitor_main(const struct monitor_params *p) __attribute__((noreturn));
