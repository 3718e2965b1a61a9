/* Signals by name, as images and users write them. */
#pragma once

/* "SIGINT", "INT", "int", "2", "SIGRTMIN+3": the number in the guest; 0 = no such signal. */
int signal_number(const char *name);
