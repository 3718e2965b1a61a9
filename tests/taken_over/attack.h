/* What an attacker tries who runs code in the monitor, behind its filter. Each attempt is a line in
 * a file of the sandbox's run directory: `can NAME`, or `cannot NAME`. */
#ifndef TAKEN_OVER_ATTACK_H
#define TAKEN_OVER_ATTACK_H

void attack_prepare(void);      /* before the filters: reads the port of a service of the host */
void attack_from_monitor(void); /* on its main thread; writes /run/taken-main */
/* On its network thread, which cannot write files: into memory, which the main thread writes to
 * /run/taken-net. */
void attack_from_network(void);
void attack_report_network(void);

#endif
