/* System calls that fail, or that are a process's last: to be loaded by LD_PRELOAD.
 *
 * Looks only at calls for paths under one folder, counts them, and at call number "at" does what
 * "how" says: an errno above 0: the call fails with it, once or (lasting) from then on; KILL_BEFORE,
 * KILL_AFTER: the process gets SIGKILL just before or after the call; SHORT: a write takes half of
 * what it was given, and all later ones fail with ENOSPC. Every call goes into a journal, as
 * "<number> <name> <path>". A process is told by faulty_arm(), or by the environment: FAULTY_PREFIX,
 * FAULTY_AT, FAULTY_HOW, FAULTY_LASTING, FAULTY_JOURNAL. Its children are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { NOTHING = 0, KILL_BEFORE = -1, KILL_AFTER = -2, SHORT = -3 };

static pid_t owner;  /* 0: nobody yet */
static char prefix[4096];
static size_t prefix_length;
static long at, count;
static int how, lasting, journal = -1;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

void faulty_arm(const char *under, long call, int what, int from_then_on, const char *log)
{
    snprintf(prefix, sizeof prefix, "%s", under);
    prefix_length = strlen(prefix);
    at = call, how = what, lasting = from_then_on, count = 0;
    journal = log && *log ? (int)syscall(SYS_openat, AT_FDCWD, log,
                                         O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    owner = getpid();
}

/* Children inherit the environment: whoever finds another owner in it is one. */
__attribute__((constructor)) static void begin_armed(void)
{
    char me[32];
    const char *under = getenv("FAULTY_PREFIX"), *log = getenv("FAULTY_JOURNAL");
    if (!under || getenv("FAULTY_OWNER")) return;
    snprintf(me, sizeof me, "%d", getpid());
    setenv("FAULTY_OWNER", me, 1);
    faulty_arm(under, atol(getenv("FAULTY_AT")), atoi(getenv("FAULTY_HOW")),
               atoi(getenv("FAULTY_LASTING")), log);
}

static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

/* The number of a call that counts; 0 for any other. */
static long enter(const char *name, const char *path)
{
    char line[4400];
    if (!owner || !path || strncmp(path, prefix, prefix_length) || owner != getpid()) return 0;
    long number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    int length = snprintf(line, sizeof line, "%ld %s %s\n", number, name, path);
    if (journal >= 0) syscall(SYS_write, journal, line, length);
    if (number == at && how == KILL_BEFORE) die();
    return number;
}

static long enter_file(const char *name, int file)
{
    char link[64], path[4096];
    int saved = errno;
    if (!owner) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    return enter(name, path);
}

static long enter_at(const char *name, int folder, const char *path)
{
    char link[64], whole[4096];
    if (!owner || !path || *path == '/' || folder == AT_FDCWD) return enter(name, path);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    int saved = errno;
    ssize_t length = readlink(link, whole, sizeof whole - 1);
    errno = saved;
    if (length < 0) return 0;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return enter(name, whole);
}

static int is_refused(long number)
{
    if (!number || how <= 0 || !(number == at || (lasting && number > at))) return 0;
    errno = how;
    return 1;
}

static void leave(long number) { if (number && number == at && how == KILL_AFTER) die(); }

#define CALL(result, entered, ...) \
    long number = entered; \
    if (is_refused(number)) return -1; \
    result answer = real(__VA_ARGS__); \
    leave(number); \
    return answer

#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...)
{ MODE(flags) REAL(open); CALL(int, enter("open", path), path, flags, mode); }

int open64(const char *path, int flags, ...)
{ MODE(flags) REAL(open64); CALL(int, enter("open", path), path, flags, mode); }

int openat(int folder, const char *path, int flags, ...)
{ MODE(flags) REAL(openat); CALL(int, enter_at("open", folder, path), folder, path, flags, mode); }

int openat64(int folder, const char *path, int flags, ...)
{ MODE(flags) REAL(openat64); CALL(int, enter_at("open", folder, path), folder, path, flags, mode); }

ssize_t read(int file, void *data, size_t length)
{ REAL(read); CALL(ssize_t, enter_file("read", file), file, data, length); }

/* Whether a write is to take no more than a part; sets errno where it is to take nothing. */
static int is_cut(long number) { return number && how == SHORT && number >= at; }

#define WRITE(name, ...) \
    long number = enter_file("write", file); \
    if (is_refused(number)) return -1; \
    if (is_cut(number)) { \
        if (number > at || length < 2) { errno = ENOSPC; return -1; } \
        length /= 2; } \
    ssize_t answer = real(file, data, length, ##__VA_ARGS__); \
    leave(number); \
    return answer

ssize_t write(int file, const void *data, size_t length) { REAL(write); WRITE(write); }

ssize_t pwrite(int file, const void *data, size_t length, off_t where)
{ REAL(pwrite); WRITE(pwrite, where); }

ssize_t pwrite64(int file, const void *data, size_t length, off64_t where)
{ REAL(pwrite64); WRITE(pwrite64, where); }

int fsync(int file) { REAL(fsync); CALL(int, enter_file("fsync", file), file); }
int fdatasync(int file) { REAL(fdatasync); CALL(int, enter_file("fsync", file), file); }

/* Where a lock could be had, letting go of it does not fail: for that a process can only die. */
int flock(int file, int what)
{
    REAL(flock);
    long number = enter_file(what & LOCK_UN ? "unlock" : "flock", file);
    if (!(what & LOCK_UN) && is_refused(number)) return -1;
    int answer = real(file, what);
    leave(number);
    return answer;
}

int ftruncate(int file, off_t length)
{ REAL(ftruncate); CALL(int, enter_file("truncate", file), file, length); }

int ftruncate64(int file, off64_t length)
{ REAL(ftruncate64); CALL(int, enter_file("truncate", file), file, length); }

int rename(const char *from, const char *to)
{ REAL(rename); CALL(int, enter("rename", to), from, to); }

int renameat(int a, const char *from, int b, const char *to)
{ REAL(renameat); CALL(int, enter_at("rename", b, to), a, from, b, to); }

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{ REAL(renameat2); CALL(int, enter_at("rename", b, to), a, from, b, to, flags); }

int link(const char *from, const char *to) { REAL(link); CALL(int, enter("link", to), from, to); }

int linkat(int a, const char *from, int b, const char *to, int flags)
{ REAL(linkat); CALL(int, enter_at("link", b, to), a, from, b, to, flags); }

int unlink(const char *path) { REAL(unlink); CALL(int, enter("unlink", path), path); }

int unlinkat(int folder, const char *path, int flags)
{ REAL(unlinkat); CALL(int, enter_at("unlink", folder, path), folder, path, flags); }

int rmdir(const char *path) { REAL(rmdir); CALL(int, enter("unlink", path), path); }

int mkdir(const char *path, mode_t mode)
{ REAL(mkdir); CALL(int, enter("mkdir", path), path, mode); }

int mkdirat(int folder, const char *path, mode_t mode)
{ REAL(mkdirat); CALL(int, enter_at("mkdir", folder, path), folder, path, mode); }
