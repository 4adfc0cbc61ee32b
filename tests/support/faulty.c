/* A system that fails on demand, to be loaded before libc: chosen calls on files below one directory
 * fail from the n-th on, and the wall clock is off by as much as one likes. Unarmed, it passes
 * everything on. Tests arm it in a process of their own through ctypes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char directory[PATH_MAX];
static char names[512]; /* ",fsync,rename," */
static int64_t nth, calls, hits, hits_in_use, syncs;
static int code, lasting;
static int64_t clock_off_ns;

/* Let every call through from now on; the counts stay as they are. */
void faulty_disarm(void) { __atomic_store_n(&nth, 0, __ATOMIC_SEQ_CST); }

/* Let the n-th call of the functions in `list` fail with `error`; if `from_then_on`, the later ones
 * as well. The list is names between commas, "," alone means all. With error 0 a write is cut in half
 * instead. */
void faulty_arm(const char *below, const char *list, int64_t n, int error, int from_then_on) {
    faulty_disarm();
    snprintf(directory, sizeof directory, "%s", below);
    snprintf(names, sizeof names, "%s", list);
    code = error;
    lasting = from_then_on;
    calls = hits = hits_in_use = syncs = 0;
    __atomic_store_n(&nth, n, __ATOMIC_SEQ_CST);
}

int64_t faulty_hits(void) { return __atomic_load_n(&hits, __ATOMIC_SEQ_CST); }

/* Of these, those on files in use: neither their name nor their directory's is a temporary one. */
int64_t faulty_hits_in_use(void) { return __atomic_load_n(&hits_in_use, __ATOMIC_SEQ_CST); }

/* How many segments below the directory were synced, by calls that succeeded. */
int64_t faulty_syncs(void) { return __atomic_load_n(&syncs, __ATOMIC_SEQ_CST); }

void faulty_clock(int64_t ns) { __atomic_store_n(&clock_off_ns, ns, __ATOMIC_SEQ_CST); }

static int is_below(const char *path) {
    size_t n = strlen(directory);
    return strncmp(path, directory, n) == 0 && (path[n] == 0 || path[n] == '/');
}

static int ends_with(const char *path, const char *suffix) {
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

static int is_chosen(const char *name) {
    char entry[64];
    snprintf(entry, sizeof entry, ",%s,", name);
    return strcmp(names, ",") == 0 || strstr(names, entry) != NULL;
}

static int strikes(const char *name, const char *path) {
    int64_t n = __atomic_load_n(&nth, __ATOMIC_SEQ_CST);
    if (n == 0 || !is_chosen(name) || !is_below(path)) return 0;
    int64_t count = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (count != n && !(lasting && count > n)) return 0;
    __atomic_add_fetch(&hits, 1, __ATOMIC_SEQ_CST);
    if (!strstr(path + strlen(directory), ".tmp")) __atomic_add_fetch(&hits_in_use, 1, __ATOMIC_SEQ_CST);
    return 1;
}

static int path_of(int fd, char path[PATH_MAX]) {
    char link[64];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    errno = before;
    path[n < 0 ? 0 : n] = 0;
    return n >= 0;
}

static int strikes_fd(const char *name, int fd) {
    char path[PATH_MAX];
    if (__atomic_load_n(&nth, __ATOMIC_SEQ_CST) == 0 || fd < 0 || !path_of(fd, path)) return 0;
    return strikes(name, path);
}

#define REAL(result, name, ...)                                             \
    static result (*real)(__VA_ARGS__);                                     \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);

#define FAIL return errno = code, -1

/* Calls on a descriptor, and their names for 64-bit offsets, which are the same functions here. */
#define ON_FD(symbol, name, result, parameters, arguments)  \
    result symbol parameters {                              \
        REAL(result, #symbol, PARAMETERS parameters)        \
        if (strikes_fd(name, fd)) FAIL;                     \
        return real arguments;                              \
    }
#define PARAMETERS(...) __VA_ARGS__

ON_FD(ftruncate, "ftruncate", int, (int fd, off_t n), (fd, n))
ON_FD(ftruncate64, "ftruncate", int, (int fd, off_t n), (fd, n))
ON_FD(fallocate, "fallocate", int, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
ON_FD(fallocate64, "fallocate", int, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
ON_FD(pread, "pread", ssize_t, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
ON_FD(pread64, "pread", ssize_t, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
ON_FD(fchmod, "fchmod", int, (int fd, mode_t mode), (fd, mode))
ON_FD(fstat, "fstat", int, (int fd, struct stat *to), (fd, to))
ON_FD(fstat64, "fstat", int, (int fd, struct stat64 *to), (fd, to))
ON_FD(flock, "flock", int, (int fd, int how), (fd, how))
ON_FD(lseek, "lseek", off_t, (int fd, off_t at, int from), (fd, at, from))
ON_FD(lseek64, "lseek", off_t, (int fd, off_t at, int from), (fd, at, from))

#define SYNC(symbol)                                                        \
    int symbol(int fd) {                                                    \
        REAL(int, #symbol, int)                                             \
        char path[PATH_MAX];                                                \
        if (strikes_fd(#symbol, fd)) FAIL;                                  \
        int result = real(fd);                                              \
        if (result == 0 && path_of(fd, path) && is_below(path) && ends_with(path, ".seg")) \
            __atomic_add_fetch(&syncs, 1, __ATOMIC_SEQ_CST);                \
        return result;                                                      \
    }
SYNC(fsync)
SYNC(fdatasync)

#define PWRITE(symbol)                                                      \
    ssize_t symbol(int fd, const void *from, size_t n, off_t at) {          \
        REAL(ssize_t, #symbol, int, const void *, size_t, off_t)            \
        if (strikes_fd("pwrite", fd)) {                                     \
            if (code) FAIL;                                                 \
            n = n > 1 ? n / 2 : n;                                          \
        }                                                                   \
        return real(fd, from, n, at);                                       \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PWRITEV(symbol)                                                     \
    ssize_t symbol(int fd, const struct iovec *v, int count, off_t at) {    \
        REAL(ssize_t, #symbol, int, const struct iovec *, int, off_t)       \
        if (strikes_fd("pwritev", fd)) {                                    \
            if (code) FAIL;                                                 \
            struct iovec half = v[0];                                       \
            if (half.iov_len > 1) half.iov_len /= 2;                        \
            return real(fd, &half, 1, at);                                  \
        }                                                                   \
        return real(fd, v, count, at);                                      \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define FCNTL(symbol)                                                       \
    int symbol(int fd, int what, ...) {                                     \
        REAL(int, #symbol, int, int, ...)                                   \
        va_list rest;                                                       \
        va_start(rest, what);                                               \
        void *argument = va_arg(rest, void *);                              \
        va_end(rest);                                                       \
        int of_lock = what == F_OFD_SETLK || what == F_OFD_GETLK;           \
        if (of_lock && strikes_fd("fcntl", fd)) FAIL;                       \
        return real(fd, what, argument);                                    \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

#define MMAP(symbol)                                                                \
    void *symbol(void *to, size_t n, int may, int how, int fd, off_t at) {          \
        REAL(void *, #symbol, void *, size_t, int, int, int, off_t)                 \
        if (!(how & MAP_ANONYMOUS) && strikes_fd("mmap", fd)) return errno = code, MAP_FAILED; \
        return real(to, n, may, how, fd, at);                                       \
    }
MMAP(mmap)
MMAP(mmap64)

/* Calls on a path. */
#define ON_PATH(symbol, name, parameters, arguments)    \
    int symbol parameters {                             \
        REAL(int, #symbol, PARAMETERS parameters)       \
        if (strikes(name, path)) FAIL;                  \
        return real arguments;                          \
    }
ON_PATH(unlink, "unlink", (const char *path), (path))
ON_PATH(mkdir, "mkdir", (const char *path, mode_t mode), (path, mode))
ON_PATH(chmod, "chmod", (const char *path, mode_t mode), (path, mode))
ON_PATH(rename, "rename", (const char *path, const char *to), (path, to))
ON_PATH(stat, "stat", (const char *path, struct stat *to), (path, to))
ON_PATH(stat64, "stat", (const char *path, struct stat64 *to), (path, to))
ON_PATH(lstat, "stat", (const char *path, struct stat *to), (path, to))
ON_PATH(lstat64, "stat", (const char *path, struct stat64 *to), (path, to))

/* Calls on a name in a directory that is held by a descriptor. */
static int strikes_at(const char *name, int at, const char *path) {
    char whole[2 * PATH_MAX];
    if (__atomic_load_n(&nth, __ATOMIC_SEQ_CST) == 0) return 0;
    if (at == AT_FDCWD || path[0] == '/') return strikes(name, path);
    if (!path_of(at, whole)) return 0;
    size_t n = strlen(whole);
    if (strcmp(path, ".") != 0) snprintf(whole + n, sizeof whole - n, "/%s", path);
    return strikes(name, whole);
}

#define AT(symbol, name, parameters, arguments)         \
    int symbol parameters {                             \
        REAL(int, #symbol, PARAMETERS parameters)       \
        if (strikes_at(name, at, path)) FAIL;           \
        return real arguments;                          \
    }
AT(unlinkat, "unlink", (int at, const char *path, int how), (at, path, how))
AT(mkdirat, "mkdir", (int at, const char *path, mode_t mode), (at, path, mode))
AT(fchmodat, "chmod", (int at, const char *path, mode_t mode, int how), (at, path, mode, how))
AT(renameat, "rename", (int at, const char *path, int to_at, const char *to), (at, path, to_at, to))
AT(renameat2, "rename", (int at, const char *path, int to_at, const char *to, unsigned how),
   (at, path, to_at, to, how))
AT(linkat, "link", (int at, const char *path, int to_at, const char *to, int how),
   (at, path, to_at, to, how))
AT(fstatat, "stat", (int at, const char *path, struct stat *to, int how), (at, path, to, how))
AT(fstatat64, "stat", (int at, const char *path, struct stat64 *to, int how), (at, path, to, how))

DIR *fdopendir(int fd) {
    REAL(DIR *, "fdopendir", int)
    if (strikes_fd("opendir", fd)) return errno = code, NULL;
    return real(fd);
}

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *)
    if (strikes("opendir", path)) return errno = code, NULL;
    return real(path);
}

#define OPEN(symbol)                                        \
    int symbol(const char *path, int flags, ...) {          \
        REAL(int, #symbol, const char *, int, ...)          \
        va_list rest;                                       \
        va_start(rest, flags);                              \
        mode_t mode = va_arg(rest, mode_t);                 \
        va_end(rest);                                       \
        if (strikes("open", path)) FAIL;                    \
        return real(path, flags, mode);                     \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(symbol)                                      \
    int symbol(int at, const char *path, int flags, ...) {  \
        REAL(int, #symbol, int, const char *, int, ...)     \
        va_list rest;                                       \
        va_start(rest, flags);                              \
        mode_t mode = va_arg(rest, mode_t);                 \
        va_end(rest);                                       \
        if (strikes_at("open", at, path)) FAIL;             \
        return real(at, path, flags, mode);                 \
    }
OPENAT(openat)
OPENAT(openat64)

int clock_gettime(clockid_t which, struct timespec *to) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *)
    int result = real(which, to);
    if (result == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)to->tv_sec * 1000000000 + to->tv_nsec;
        ns += __atomic_load_n(&clock_off_ns, __ATOMIC_SEQ_CST);
        to->tv_sec = ns / 1000000000;
        to->tv_nsec = ns % 1000000000;
    }
    return result;
}
