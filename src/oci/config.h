/* A bundle's config.json, turned into a sandbox. docs/oci.md explains what its fields mean here.
 *
 * A field that asks for something this runtime does not support is refused by name, unless the
 * container, which has its own kernel, loses nothing without it.
 */
#pragma once

#include "oci/process.h"
#include "policy/rulebook.h"
#include "spec/spec.h"

#define OWN_KERNEL "the container has a kernel of its own"

enum oci_namespace { OCI_NS_NET, OCI_NS_IPC, OCI_NS_UTS, OCI_NS_MAX };

struct oci_namespaces {
    bool wanted[OCI_NS_MAX];
    const char *path[OCI_NS_MAX]; /* the namespace to join; NULL: a new one */
    bool entered[OCI_NS_MAX];     /* entered by the caller: not every process may create one */
    const char *pids;             /* the pid namespace to join, in a pod; NULL: a separate one */
};

struct container_config {
    json_t *j;
    char *bundle; /* absolute */
    char *rootfs;
    struct sandbox_spec spec;
    struct oci_process process;
    struct oci_namespaces ns;
    const char *cgroups_path; /* NULL: none */
    const json_t *resources;  /* linux.resources, for the host; NULL: none */
    void *filter;             /* linux.seccomp, of process; NULL: none */
    unsigned said;            /* enum spec_said: what a policy refuses, not narrows */
    bool said_cpus;           /* by an annotation of the pod */
    bool sandbox;             /* a pod's first container, whose guest the others share */
    const char *pod;          /* that container's id, according to the caller; NULL: not given */
    bool in_kubernetes;       /* ... and that is certainly right */
    uint32_t pids_of;         /* the pod's number of the container whose pid namespace ns.pids is */
};
#define AUTO_CONFIG CLEANUP(container_config_free)

/* Reads bundle/config.json. *c is all zeros before; free it after a failure, too. */
int container_config_read(struct container_config *c, const char *bundle, const char *id,
                          struct err *e);
void container_config_free(struct container_config *c);
/* Handles what applies only in a pod's guest, or only outside of one, once that is known. */
int container_config_settle(struct container_config *c, bool in_pod, struct err *e);
int refuse_namespace(const char *type, const char *path, const char *why, struct err *e);
bool is_same_file(const char *one, const char *other);
/* The part of it that `state` and `list` show, and what else is kept once there is a process. NULL: out of
 * memory. */
json_t *container_config_about(const struct container_config *c);
json_t *container_config_state(const struct container_config *c);

/* Reads what programs may do to their own kernel: capabilities, limits, masked paths. */
int container_config_read_security(struct container_config *c, struct err *e);
/* Reads `mounts`, as shares and tmpfs of the spec. */
int container_config_read_mounts(struct container_config *c, struct err *e);
/* The options of a mount that have an effect, for `features`. NULL: out of memory. */
json_t *container_config_mount_options(void);
/* How many CPUs a guest has that may use so much of their time: never more than the host. */
double container_config_cpus(double quota, double period);
/* Finds out whether it is a pod, or in one. */
void container_config_read_pod(struct container_config *c);
/* Reads the annotations msb.*: settings of the sandbox. */
int container_config_read_annotations(struct container_config *c, struct err *e);
