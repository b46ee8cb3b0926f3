/* Counts calls of the CUDA driver that submit work, by name, through CUPTI's callbacks.
 *
 *     cc -shared -fPIC -o launches.so launches.c -ldl
 *     COUNT=counts.txt CUDA_INJECTION64_PATH=$PWD/launches.so trainer bench ... --steps 20
 *
 * A step's calls are the difference of two runs with different numbers of steps. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVER = 1, ENTER = 0, NAMES = 64 };

typedef struct {
    int site;
    const char *function;
} Call;

static struct {
    uint32_t id;
    const char *name;
    long calls;
} counts[NAMES];

static void on_call(void *user, int domain, uint32_t id, const Call *call) {
    (void)user;
    if (domain != DRIVER || call->site != ENTER) return;
    const char *name = call->function;
    if (strncmp(name, "cuLaunch", 8) && strncmp(name, "cuGraphLaunch", 13) && strncmp(name, "cuMemcpy", 8) &&
        strncmp(name, "cuMemset", 8))
        return;
    for (int i = 0; i < NAMES; i++) {
        if (!counts[i].name) {
            counts[i].id = id;
            counts[i].name = name;
        }
        if (counts[i].id == id) {
            __atomic_fetch_add(&counts[i].calls, 1, __ATOMIC_RELAXED);
            return;
        }
    }
}

static void write_counts(void) {
    FILE *file = fopen(getenv("COUNT") ? getenv("COUNT") : "/dev/stderr", "w");
    for (int i = 0; file && i < NAMES && counts[i].name; i++) fprintf(file, "%s %ld\n", counts[i].name, counts[i].calls);
    if (file) fclose(file);
}

int InitializeInjection(void) {
    void *cupti = dlopen("libcupti.so", RTLD_NOW | RTLD_GLOBAL);
    if (!cupti) cupti = dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
    if (!cupti) {
        fprintf(stderr, "launches: %s\n", dlerror());
        return 1;
    }
    int (*subscribe)(void **, void *, void *) = dlsym(cupti, "cuptiSubscribe");
    int (*enable)(uint32_t, void *, int) = dlsym(cupti, "cuptiEnableDomain");
    void *subscriber = NULL;
    if (subscribe(&subscriber, on_call, NULL) || enable(1, subscriber, DRIVER)) {
        fprintf(stderr, "launches: CUPTI refused\n");
        return 1;
    }
    atexit(write_counts);
    return 1;
}
