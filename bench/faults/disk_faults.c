// Makes one call that writes to a folder, or to a file, fail. Loaded with LD_PRELOAD.
//
//   FAULTS_BELOW  the folder, or the file
//   FAULTS_LOG    a file outside of it. Each counted call adds a line: number, name, path; "fault" before the one that failed
//   FAULTS_AT     the number of the call that fails, from 1. 0: none
//   FAULTS_KIND   ENOSPC, EIO, EDQUOT: the call fails so. full: ENOSPC from this call on, but for unlink and the like.
//                 short: a write writes half. torn: a write writes half, and the next one fails with ENOSPC.
//                 kill: SIGKILL, before the call or after half of a write. slow: the call takes 8 s more.
//                 hang: this call and all later ones wait for ever. nospace: every write fails with ENOSPC, whatever its number
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { PASS = 0, HALF = -1, HALF_AND_DIE = -2 };  // else an errno

static const char *below, *kind;
static long fault_at;
static int log_file = -1;
static atomic_long calls;
static atomic_int torn;

__attribute__((constructor)) static void start(void) {
    below = getenv("FAULTS_BELOW");
    kind = getenv("FAULTS_KIND");
    const char *at = getenv("FAULTS_AT"), *log = getenv("FAULTS_LOG");
    fault_at = at ? atol(at) : 0;
    if (log) log_file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static int is_below(const char *path) {
    size_t length = below ? strlen(below) : 0;
    return length && strncmp(path, below, length) == 0 && (path[length] == '/' || path[length] == 0);
}

// Counts a call on a path, and says what is to happen to it. A write can be done in part.
static int fate(const char *name, const char *path, int is_write, int frees) {
    // The state of the ranks is written every second: counted, it would give later calls other numbers in each run.
    if (!is_below(path) || strstr(path, "/ranks.json")) return PASS;
    long number = ++calls;
    int wanted = PASS;
    if (kind && !strcmp(kind, "nospace")) return is_write ? ENOSPC : PASS;
    if (kind && !strcmp(kind, "hang") && number >= fault_at) for (;;) pause();
    if (kind && !strcmp(kind, "slow") && number == fault_at) sleep(8);
    if (fault_at && kind && (number == fault_at || (number > fault_at && !strcmp(kind, "full")))) {
        if (!strcmp(kind, "ENOSPC")) wanted = ENOSPC;
        if (!strcmp(kind, "EIO")) wanted = EIO;
        if (!strcmp(kind, "EDQUOT")) wanted = EDQUOT;
        if (!strcmp(kind, "full") && !frees) wanted = ENOSPC;
        if (is_write && (!strcmp(kind, "short") || !strcmp(kind, "torn"))) wanted = HALF;
        if (!strcmp(kind, "kill")) wanted = HALF_AND_DIE;
        if (wanted == HALF && !strcmp(kind, "torn")) torn = 1;
    } else if (is_write && atomic_exchange(&torn, 0)) {
        wanted = ENOSPC;
    }
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s%ld %s %s\n", wanted ? "fault " : "", number, name, path);
    if (log_file >= 0) syscall(SYS_write, log_file, line, (size_t)length);
    if (wanted == HALF_AND_DIE && !is_write) kill(getpid(), SIGKILL);
    return wanted;
}

static int fate_of_file(const char *name, int file, int is_write) {
    char link[64], path[PATH_MAX];
    int error = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = error;
    if (length < 0) return PASS;
    path[length] = 0;
    return fate(name, path, is_write, 0);
}

static int fate_at(const char *name, int folder, const char *path, int frees) {
    if (path[0] == '/' || folder == AT_FDCWD) return fate(name, path, 0, frees);
    char link[64], whole[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, whole, sizeof whole - 1);
    if (length < 0) return PASS;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return fate(name, whole, 0, frees);
}

#define FAIL_IF(wanted) do { int error_ = (wanted); if (error_ > 0) { errno = error_; return -1; } } while (0)

#define WRITE(name, file, count, whole, half)          \
    int wanted = fate_of_file(name, file, 1);          \
    FAIL_IF(wanted);                                   \
    if (wanted == PASS) return whole;                  \
    ssize_t written = (count) > 1 ? (half) : (whole);  \
    if (wanted == HALF_AND_DIE) kill(getpid(), SIGKILL); \
    return written;

ssize_t write(int file, const void *bytes, size_t count) {
    WRITE("write", file, count, REAL(write)(file, bytes, count), REAL(write)(file, bytes, count / 2))
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
    WRITE("pwrite", file, count, REAL(pwrite64)(file, bytes, count, at), REAL(pwrite64)(file, bytes, count / 2, at))
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    WRITE("writev", file, count, REAL(writev)(file, parts, count), REAL(writev)(file, parts, count / 2))
}

ssize_t copy_file_range(int in, off64_t *from, int file, off64_t *to, size_t count, unsigned flags) {
    WRITE("copy_file_range", file, count, REAL(copy_file_range)(in, from, file, to, count, flags),
          REAL(copy_file_range)(in, from, file, to, count / 2, flags))
}

int fsync(int file) {
    FAIL_IF(fate_of_file("fsync", file, 0));
    return REAL(fsync)(file);
}

int fdatasync(int file) {
    FAIL_IF(fate_of_file("fdatasync", file, 0));
    return REAL(fdatasync)(file);
}

int ftruncate64(int file, off64_t length) {
    FAIL_IF(fate_of_file("ftruncate", file, 0));
    return REAL(ftruncate64)(file, length);
}

int rename(const char *from, const char *to) {
    FAIL_IF(fate_at("rename", AT_FDCWD, to, 0));
    return REAL(rename)(from, to);
}

int unlink(const char *path) {
    FAIL_IF(fate_at("unlink", AT_FDCWD, path, 1));
    return REAL(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
    FAIL_IF(fate_at("unlinkat", folder, path, 1));
    return REAL(unlinkat)(folder, path, flags);
}

int rmdir(const char *path) {
    FAIL_IF(fate_at("rmdir", AT_FDCWD, path, 1));
    return REAL(rmdir)(path);
}

int mkdir(const char *path, mode_t mode) {
    FAIL_IF(fate_at("mkdir", AT_FDCWD, path, 0));
    return REAL(mkdir)(path, mode);
}

static mode_t mode_of(int flags, va_list more) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
}

#define OPEN(name, folder, call)                                                                       \
    va_list more;                                                                                      \
    va_start(more, flags);                                                                             \
    mode_t mode = mode_of(flags, more);                                                                \
    va_end(more);                                                                                      \
    if (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) FAIL_IF(fate_at(name, folder, path, 0));      \
    return call;

int open(const char *path, int flags, ...) {
    OPEN("open", AT_FDCWD, REAL(open)(path, flags, mode))
}

int open64(const char *path, int flags, ...) {
    OPEN("open", AT_FDCWD, REAL(open64)(path, flags, mode))
}

int openat(int folder, const char *path, int flags, ...) {
    OPEN("open", folder, REAL(openat)(folder, path, flags, mode))
}

int openat64(int folder, const char *path, int flags, ...) {
    OPEN("open", folder, REAL(openat64)(folder, path, flags, mode))
}
