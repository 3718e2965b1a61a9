#include "monitor/internal.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* #syscalls:monitor sendto exit_group clock_gettime */

bool monitor_save_state(struct monitor *m, enum status st)
{
    m->state.status = st;
    m->state.updated_ns = realtime_ns();
    int r = state_save(m->run_fd, &m->state);
    if (r < 0)
        exec_log_printf(&m->system_log, "cannot save state: %s", strerror(-r));
    return r == 0;
}

void monitor_send_report(struct monitor *m, int code, const char *text, const char *hint)
{
    if (m->report.fd < 0)
        return;
    struct monitor_report rep = {.code = code};
    (void)snprintf(rep.text, sizeof(rep.text), "%s", text);
    (void)snprintf(rep.hint, sizeof(rep.hint), "%s", hint);
    (void)send(m->report.fd, &rep, sizeof(rep), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void monitor_note_reason(struct monitor *m, bool crashed, const char *why)
{
    if (m->why[0])
        return;
    (void)snprintf(m->why, sizeof(m->why), "%s", why);
    m->crashed = crashed;
}

void monitor_kill(struct monitor *m, bool crashed, const char *why)
{
    monitor_note_reason(m, crashed, why);
    if (m->engine)
        m->p->engine->kill(m->engine);
}

void monitor_stop(struct monitor *m, uint64_t grace_ms, const char *why)
{
    if (m->phase == DRAINING) {
        if (grace_ms == 0)
            monitor_kill(m, false, why);
        return;
    }
    monitor_note_reason(m, false, why);
    relay_refuse(&m->relay);
    bool asked = false;
    if (m->phase == RUNNING) {
        (void)monitor_save_state(m, STATUS_DRAINING);
        asked = grace_ms > 0 && control_shutdown(&m->control, grace_ms);
        m->phase = DRAINING;
    }
    if (asked)
        loop_timer_set(&m->loop, &m->kill_timer, MS(grace_ms + POWEROFF_SLACK_MS));
    else
        monitor_kill(m, false, why);
}

static void report_end(struct monitor *m)
{
    char hint[CONSOLE_LINE_MAX + 32] = "";
    if (m->console.len)
        (void)snprintf(hint, sizeof(hint), "last kernel message: %s", m->console.line);
    monitor_send_report(m, ECHILD, m->why, hint);
}

/* Includes what the engine's own processes used; a guest that runs in this process is part of its
 * time. */
static void count_used(struct monitor *m)
{
    struct sandbox_used *u = &m->state.used;
    struct timespec t = {0};
    *u = (struct sandbox_used){0};
    monitor_count_bytes(m, u);
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    u->cpu_ns = (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
    if (m->engine && m->p->engine->cpu_ns)
        u->cpu_ns += m->p->engine->cpu_ns(m->engine);
    /* The host does not report the CPU time of processes that the uml engine's kernel has ended. */
    u->cpu_ns = MAX(u->cpu_ns, MIN(m->control.cpu_ns, (uint64_t)INT64_MAX));
}

/* The state is on record before the launcher is told, and before the lock goes with the process. */
void monitor_end(struct monitor *m)
{
    bool awaited = m->phase == BOOTING || m->control.sealing;
    m->phase = DRAINING; /* sessions that end below do not stop it again */
    exec_log_printf(&m->system_log, "%s: %s", m->crashed ? "crashed" : "stopped", m->why);
    exec_log_flush(&m->system_log); /* before the state: `msb logs` may follow it at once */
    exec_log_flush(&m->log);
    (void)snprintf(m->state.reason, sizeof(m->state.reason), "%s", m->why);
    count_used(m);
    if (m->p->creating && !m->acknowledged)
        (void)monitor_save_state(m,
                                 STATUS_CREATING); /* it was never acknowledged: readers undo it */
    else
        (void)monitor_save_state(m, m->crashed ? STATUS_CRASHED : STATUS_STOPPED);
    if (awaited)
        report_end(m);
    relay_end(&m->relay);
    exec_log_close(&m->log);
    exec_log_close(&m->system_log);
    net_control_close(&m->net);
    _exit(0);
}
