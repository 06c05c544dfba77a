/* A libnvidia-ml.so.1 with no GPU behind it: enough of NVML for the real pynvml to load and ask.
 *
 * The machine lives in this process, or, where the environment variable FAKE_NVML_STATE names a
 * file, in that file: all processes with the same file see the same GPUs. Whoever comes first makes
 * it. Facts of the machine are "key=value" words in the environment variable FAKE_NVML, read when
 * the machine is made; fake_nvml_set(key, value) changes them later, for everybody:
 *   gpus        number of GPUs                          (2)
 *   serial      a number below 10 million that goes into the UUIDs (0)
 *   pci         1: PCI addresses rise with NVML's index; 2: they fall; 0: not supported (1)
 *   different   1: every GPU is another model           (0)
 *   grace       1: Grace Hoppers: power usage is that of the module (0)
 *   mig         MIG instances on GPU 0                  (0)
 *   driver      0: no driver is loaded; 2: it does not match the library (1)
 *   restart     a driver restarted whenever this changes: limits are at their default, counters at
 *               zero, and who was there before hears UNINITIALIZED until it starts NVML again (0)
 *   withheld    index of a GPU that this user may not open, or -1
 *   lost        index of a GPU that has fallen off the bus, or -1
 *   broken      index of a GPU whose handle is refused with broken_code, or -1
 *   broken_code (999, for UNKNOWN)
 *   lost_after_ms  GPU 0 falls off the bus so long after this was set; -1: never (-1)
 *   counter     0: not supported; 1: counts; 2: stands still; 3: is zero, as after a restart (1)
 *   counter_ms  the counter moves so often              (100)
 *   counter_code, power_code, limit_code  what questions for them answer instead; 0: nothing (0)
 *   power       0: power and limits are not supported; 2: power is always zero (1)
 *   instant     field values know 1: instant and average power; 2: the average alone; 3: as 1, but
 *               instant power is always zero; 0: neither (1)
 *   average     1: power usage is the mean of the last second, else instant (0)
 *   module_mw   what a Grace Hopper's module draws beside its GPU (50000)
 *   health      0: utilisation, temperature, clocks and throttle reasons are not supported (1)
 *   permission  0: power limits are refused             (1)
 *   foreign     id of a process that is listed as computing on every GPU, or 0 (0)
 *   processes   0: processes are not told               (1)
 *   slow_us     every call takes so long                (0)
 *   clock_ms    the time; energy follows from it; -1: real time (0)
 *   work        1: only GPUs that fake_nvml_work keeps busy are; 0: all are, always (0)
 *   idle_mw     what a GPU draws that is not busy       (60000)
 *   step_us     how long an optimizer step takes without a limit (20000)
 * fake_nvml_get("users") tells how often NVML is initialised and not shut down in this process.
 * Compiled with WITHOUT_ENERGY, WITHOUT_FIELDS, WITHOUT_EVENT_REASONS or WITHOUT_PROCESSES_V3 it is
 * a driver older than the energy counter, field values, the newer name of the throttle reasons or
 * the newer list of processes.
 *
 * Model of a busy GPU: it draws p = min(limit, 250 W), of which 90 W are static. Its clock follows
 * the cube root of the rest, c = ((p - 90 W) / 160 W)^(1/3), and 0.6 of a step waits for memory,
 * whose clock stands: a step takes step_us * (0.6 + 0.4 / c). In joules a step is cheapest at
 * 112 W; at eta_knob 0.5 with a maximum of 400 W, at 180 W; above 250 W nothing changes. A step
 * takes 1.05, 1.09, 1.16, 1.26 and 1.61 times as long at 200, 175, 150, 125 and 100 W.
 *
 * For training children (ctypes), which need not initialise NVML:
 *   double fake_nvml_step_s(int gpu)          seconds that a step takes at the limit in force
 *   void fake_nvml_work(int gpu, double s)    this process keeps the GPU busy from now for so long,
 *                                             and is listed as computing on it until it is dead;
 *                                             less than 0: it lets go of the GPU
 * For tests:
 *   void fake_nvml_open(const char *path)     as if FAKE_NVML_STATE had been path from the start
 *   unsigned fake_nvml_limit_mw(int gpu), int fake_nvml_force_limit(int gpu, unsigned mw)
 *                                             past every permission, as a privileged daemon does
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
       NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15,
       LIB_RM_VERSION_MISMATCH = 18 };

enum { MAX_GPUS = 8, MAX_WORKERS = 64, HISTORY = 256, HISTORY_STEP_US = 5000 };
enum { MIN_MW = 100000, MAX_MW = 400000, DEMAND_MW = 250000, STATIC_MW = 90000 };
enum { SM_MHZ = 1410, IDLE_SM_MHZ = 210, MEMORY_MHZ = 1215 };
enum { GPU_IDLE = 1, SW_POWER_CAP = 4 };
enum { POWER_AVERAGE = 185, POWER_INSTANT = 186 };
enum { SCOPE_GPU = 0, SCOPE_MODULE = 1 };
enum { AMPERE = 7, HOPPER = 9 };

static const struct { const char *key; long value; } FACTS[] = {
    {"gpus", 2}, {"serial", 0}, {"pci", 1}, {"different", 0}, {"grace", 0}, {"mig", 0}, {"driver", 1},
    {"restart", 0}, {"withheld", -1}, {"lost", -1}, {"lost_after_ms", -1}, {"broken", -1},
    {"broken_code", 999}, {"counter_code", 0}, {"power_code", 0}, {"limit_code", 0},
    {"counter", 1}, {"counter_ms", 100}, {"power", 1}, {"instant", 1}, {"average", 0}, {"module_mw", 50000},
    {"health", 1}, {"permission", 1}, {"foreign", 0}, {"processes", 1}, {"slow_us", 0},
    {"clock_ms", 0}, {"work", 0}, {"idle_mw", 60000}, {"step_us", 20000},
};
enum { N_FACTS = sizeof FACTS / sizeof *FACTS };

typedef struct { pid_t pid; long busy_until_us; } worker;

typedef struct {
    unsigned limit_mw;
    long settled_us;               /* until when energy is settled */
    double used_mj, counted_mj;    /* energy until then; and at the counter's last step */
    double frozen_mj;
    int frozen;
    worker workers[MAX_WORKERS];   /* pid 0: a free place */
    struct { long us; double mj; } history[HISTORY];
    int newest;
} state;

typedef struct {
    int ready;
    pthread_mutex_t lock;
    long facts[N_FACTS];
    long lost_at_ms;               /* -1: never */
    state gpus[MAX_GPUS];
} machine;

typedef struct { int index, mig; } gpu;  /* what a handle points to; mig -1: a whole GPU */

static machine own, *here;
static gpu gpus[MAX_GPUS], instances[MAX_GPUS];
static long users, generation;

static int fact_index(const char *key)
{
    for (int i = 0; i < N_FACTS; i++)
        if (!strcmp(FACTS[i].key, key)) return i;
    fprintf(stderr, "fake_nvml: no fact is named %s\n", key);
    abort();
}

/* Facts that the hot path asks for are found once. */
#define FACT(key) (__extension__({ static int at = -1; if (at < 0) at = fact_index(key); \
                                   here->facts[at]; }))

static long now_us(void)
{
    struct timespec now;
    long told_ms = FACT("clock_ms");
    if (told_ms >= 0) return told_ms * 1000;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* A process may be killed while it holds the lock: the next one takes it over. */
static void lock(void)
{
    if (pthread_mutex_lock(&here->lock) == EOWNERDEAD) pthread_mutex_consistent(&here->lock);
}

static void unlock(void) { pthread_mutex_unlock(&here->lock); }

static unsigned busy_mw(const state *s) { return s->limit_mw < DEMAND_MW ? s->limit_mw : DEMAND_MW; }

/* By Newton's rule, since who builds this need not link libm. */
static double clock_share(const state *s)
{
    double cube = (double)(busy_mw(s) - STATIC_MW) / (DEMAND_MW - STATIC_MW), root = 1;
    for (int i = 0; i < 20; i++) root -= (root - cube / (root * root)) / 3;
    return root;
}

static int is_busy(const state *s, long at_us)
{
    if (!FACT("work")) return 1;
    for (const worker *w = s->workers; w < s->workers + MAX_WORKERS; w++)
        if (w->pid && w->busy_until_us > at_us) return 1;
    return 0;
}

static unsigned draw_mw(const state *s, long at_us)
{
    return is_busy(s, at_us) ? busy_mw(s) : FACT("idle_mw");
}

static void remember(state *s, long us)
{
    int last = (s->newest + HISTORY - 1) % HISTORY;
    if (us - s->history[last].us >= HISTORY_STEP_US) s->newest = (s->newest + 1) % HISTORY;
    s->history[s->newest].us = us;
    s->history[s->newest].mj = s->used_mj;
}

/* Power is constant from one settling to the next, but for the end of work in between. */
static void settle_until(state *s, long until_us)
{
    while (s->settled_us < until_us) {
        long next_us = until_us;
        for (const worker *w = s->workers; w < s->workers + MAX_WORKERS; w++)
            if (w->pid && w->busy_until_us > s->settled_us && w->busy_until_us < next_us)
                next_us = w->busy_until_us;
        s->used_mj += (double)draw_mw(s, s->settled_us) * (next_us - s->settled_us) / 1e6;
        s->settled_us = next_us;
        remember(s, next_us);
    }
}

static void settle(state *s, long at_us)
{
    long step_us = FACT("counter_ms") * 1000, boundary_us = at_us - at_us % step_us;
    if (boundary_us >= s->settled_us) {
        settle_until(s, boundary_us);
        s->counted_mj = s->used_mj;
    }
    settle_until(s, at_us);
    for (worker *w = s->workers; w < s->workers + MAX_WORKERS; w++)
        if (w->pid && w->busy_until_us > at_us && kill(w->pid, 0) && errno == ESRCH) w->pid = 0;
}

/* Begin to count at zero now. */
static void begin(state *s)
{
    s->settled_us = now_us();
    s->used_mj = s->counted_mj = 0;
    s->frozen = s->newest = 0;
    for (int i = 0; i < HISTORY; i++) {
        s->history[i].us = s->settled_us;
        s->history[i].mj = 0;
    }
}

/* Mean watts of the last second, or of as much of it as there has been. */
static unsigned mean_mw(const state *s, long at_us)
{
    int i = s->newest, older;
    while (s->history[i].us > at_us - 1000000) {
        older = (i + HISTORY - 1) % HISTORY;
        if (older == s->newest || s->history[older].us >= s->history[i].us) break;
        i = older;
    }
    long from_us = s->history[i].us;
    double from_mj = s->history[i].mj;
    if (from_us < at_us - 1000000 && i != s->newest) {
        int newer = (i + 1) % HISTORY;
        double share = (double)(at_us - 1000000 - from_us) / (s->history[newer].us - from_us);
        from_mj += share * (s->history[newer].mj - from_mj);
        from_us = at_us - 1000000;
    }
    if (from_us >= at_us) return draw_mw(s, at_us);
    return (unsigned)((s->used_mj - from_mj) / (at_us - from_us) * 1e6 + 0.5);
}

static long get_fact(const char *key)
{
    return strcmp(key, "users") ? here->facts[fact_index(key)] : users;
}

static void set_fact(const char *key, long value)
{
    long *fact = &here->facts[fact_index(key)], old = *fact;
    for (state *s = here->gpus; s < here->gpus + MAX_GPUS; s++)
        if (here->ready) settle(s, now_us());
    *fact = value;
    if (!strcmp(key, "lost_after_ms")) here->lost_at_ms = value < 0 ? -1 : now_us() / 1000 + value;
    for (state *s = here->gpus; s < here->gpus + MAX_GPUS; s++) {
        if (!strcmp(key, "restart") && value != old) {
            begin(s);
            s->limit_mw = MAX_MW;
        }
        /* Another time altogether: what passed in between is not worked off. */
        if (!strcmp(key, "clock_ms") && ((value < 0) != (old < 0) || (value >= 0 && value < old)))
            s->settled_us = now_us();
        if (!strcmp(key, "counter") && value != 2) s->frozen = 0;
    }
}

static void make_machine(void)
{
    char words[1024] = "";
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&here->lock, &attributes);
    here->lost_at_ms = -1;
    for (int i = 0; i < N_FACTS; i++) here->facts[i] = FACTS[i].value;
    if (getenv("FAKE_NVML")) strncpy(words, getenv("FAKE_NVML"), sizeof words - 1);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        char *equals = strchr(word, '=');
        if (!equals) abort();
        *equals = 0;
        set_fact(word, atol(equals + 1));
    }
    for (int i = 0; i < MAX_GPUS; i++) {
        here->gpus[i].limit_mw = MAX_MW;
        begin(&here->gpus[i]);
    }
    here->ready = 1;
}

void fake_nvml_open(const char *path)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        gpus[i] = (gpu){.index = i, .mig = -1};
        instances[i] = (gpu){.index = 0, .mig = i};
    }
    if (!path) {
        here = &own;
        make_machine();
        return;
    }
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || flock(file, LOCK_EX)) { perror(path); abort(); }
    if (ftruncate(file, sizeof(machine))) { perror(path); abort(); }
    here = mmap(NULL, sizeof(machine), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (here == MAP_FAILED) { perror(path); abort(); }
    if (!here->ready) make_machine();
    flock(file, LOCK_UN);  /* closing would not do: the mapping keeps the file open */
    close(file);
}

static void be_here(void)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (!here) fake_nvml_open(getenv("FAKE_NVML_STATE"));
    pthread_mutex_unlock(&once);
}

long fake_nvml_get(const char *key)
{
    be_here();
    lock();
    long value = get_fact(key);
    unlock();
    return value;
}

void fake_nvml_set(const char *key, long value)
{
    be_here();
    lock();
    set_fact(key, value);
    unlock();
}

double fake_nvml_step_s(int index)
{
    be_here();
    lock();
    double clock = clock_share(&here->gpus[index]);
    double step_s = FACT("step_us") / 1e6 * (0.6 + 0.4 / clock);
    unlock();
    return step_s;
}

/* Whether the process runs; one that only waits to be reaped does not. */
static int is_alive(pid_t pid)
{
    char path[64], text[512] = "";
    if (kill(pid, 0) && errno == ESRCH) return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *name_end = strrchr(text, ')');
    return name_end && name_end[1] && name_end[2] != 'Z';
}

void fake_nvml_work(int index, double seconds)
{
    be_here();
    lock();
    state *s = &here->gpus[index];
    long at_us = now_us();
    settle(s, at_us);
    worker *place = NULL;
    for (worker *w = s->workers; w < s->workers + MAX_WORKERS; w++) {
        if (w->pid == getpid()) { place = w; break; }
        if (!place && (!w->pid || !is_alive(w->pid))) place = w;
    }
    if (!place) abort();
    place->pid = seconds < 0 ? 0 : getpid();
    place->busy_until_us = at_us + (long)(seconds * 1e6);
    unlock();
}

unsigned fake_nvml_limit_mw(int index)
{
    be_here();
    lock();
    unsigned mw = here->gpus[index].limit_mw;
    unlock();
    return mw;
}

int fake_nvml_force_limit(int index, unsigned mw)
{
    be_here();
    if (index < 0 || index >= MAX_GPUS || mw < MIN_MW || mw > MAX_MW) return INVALID_ARGUMENT;
    lock();
    settle(&here->gpus[index], now_us());
    here->gpus[index].limit_mw = mw;
    unlock();
    return SUCCESS;
}

/* NVML itself. Every answer begins with ASK(): it is slow if told so, holds the lock while the
 * answer is made, and refuses where there is nobody to ask. */
static void release(int *held) { (void)held; unlock(); }

static void dawdle(void)
{
    be_here();
    long slow_us = FACT("slow_us");
    if (slow_us > 0) usleep(slow_us);
    lock();
}

static int refuse(const gpu *g)
{
    if (!users || generation != FACT("restart")) return UNINITIALIZED;
    if (!g) return SUCCESS;
    if (g->index == FACT("lost")) return GPU_IS_LOST;
    if (!g->index && here->lost_at_ms >= 0 && now_us() / 1000 >= here->lost_at_ms)
        return GPU_IS_LOST;
    return SUCCESS;
}

#define ASK(g) \
    dawdle(); \
    __attribute__((cleanup(release))) int held = 1; (void)held; \
    do { int code = refuse(g); if (code) return code; } while (0)
#define NEED(key) do { if (!FACT(key)) return NOT_SUPPORTED; } while (0)
#define FAIL(key) do { if (FACT(key)) return FACT(key); } while (0)
#define SETTLED(g, s, at_us) \
    state *s = &here->gpus[(g)->index]; long at_us = now_us(); settle(s, at_us)

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    dawdle();
    __attribute__((cleanup(release))) int held = 1;
    (void)held;
    if (FACT("driver") == 0) return DRIVER_NOT_LOADED;
    if (FACT("driver") == 2) return LIB_RM_VERSION_MISMATCH;
    if (!users) generation = FACT("restart");
    users++;
    return SUCCESS;
}

int nvmlShutdown(void)
{
    if (!users) return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case UNINITIALIZED: return "Uninitialized";
    case GPU_IS_LOST: return "GPU is lost";
    case NO_PERMISSION: return "Insufficient Permissions";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "some other fake error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ASK(NULL);
    *count = FACT("gpus");
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu **handle)
{
    ASK(NULL);
    if (index >= FACT("gpus")) return INVALID_ARGUMENT;
    if (index == FACT("withheld")) return NO_PERMISSION;
    if (index == FACT("broken")) return FACT("broken_code");
    *handle = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(const gpu *g, char *uuid, unsigned length)
{
    ASK(g);
    long serial = FACT("serial");
    if (g->mig >= 0) snprintf(uuid, length, "MIG-%d%07ld-5555", g->mig, serial);
    else snprintf(uuid, length, "GPU-%d%07ld-1111", g->index, serial);
    return SUCCESS;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
} pci_info;

int nvmlDeviceGetPciInfo_v3(const gpu *g, pci_info *pci)
{
    ASK(g);
    NEED("pci");
    *pci = (pci_info){.bus = 1 + (FACT("pci") == 2 ? MAX_GPUS - g->index : g->index)};
    snprintf(pci->address, sizeof pci->address, "%08X:%02X:00.0", pci->domain, pci->bus);
    return SUCCESS;
}

int nvmlDeviceGetName(const gpu *g, char *name, unsigned length)
{
    ASK(g);
    int model = FACT("different") ? g->index : 0;
    if (FACT("grace")) snprintf(name, length, "Fake GH200 480GB");
    else snprintf(name, length, "Fake %c100%s", 'A' + model, g->mig >= 0 ? " MIG 1g.5gb" : "");
    return SUCCESS;
}

int nvmlDeviceGetArchitecture(const gpu *g, unsigned *architecture)
{
    ASK(g);
    *architecture = FACT("grace") ? HOPPER : AMPERE;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(const gpu *g, unsigned *count)
{
    ASK(g);
    if (g->index || !FACT("mig")) return NOT_SUPPORTED;
    *count = MAX_GPUS - 1;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(const gpu *g, unsigned index, gpu **handle)
{
    ASK(g);
    if (index >= FACT("mig")) return NOT_FOUND;
    *handle = &instances[index];
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(const gpu *g, unsigned *mw)
{
    ASK(g);
    FAIL("power_code");
    NEED("power");
    SETTLED(g, s, at_us);
    *mw = FACT("average") ? mean_mw(s, at_us) : draw_mw(s, at_us);
    if (FACT("grace")) *mw += FACT("module_mw");
    if (FACT("power") == 2) *mw = 0;
    return SUCCESS;
}

#ifndef WITHOUT_FIELDS
typedef struct {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    int type, code;                /* type 1: unsigned int */
    union { double d; unsigned ui; unsigned long long ull; } value;
} field_value;

static int field_mw(const gpu *g, const field_value *v, unsigned *mw)
{
    long known = FACT("instant");
    FAIL("power_code");
    if (!FACT("power") || !known) return NOT_SUPPORTED;
    if (v->scope > SCOPE_MODULE || (v->scope == SCOPE_MODULE && !FACT("grace")))
        return INVALID_ARGUMENT;
    SETTLED(g, s, at_us);
    if (v->field == POWER_AVERAGE) *mw = mean_mw(s, at_us);
    else if (v->field != POWER_INSTANT) return INVALID_ARGUMENT;
    else if (known == 2) return NOT_SUPPORTED;
    else *mw = draw_mw(s, at_us);
    if (v->scope == SCOPE_MODULE) *mw += FACT("module_mw");
    if (FACT("power") == 2 || (known == 3 && v->field == POWER_INSTANT)) *mw = 0;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(const gpu *g, int count, field_value *values)
{
    ASK(g);
    for (field_value *v = values; v < values + count; v++) {
        v->type = 1;
        v->timestamp_us = now_us();
        v->latency_us = 0;
        v->value.ull = 0;
        v->code = field_mw(g, v, &v->value.ui);
    }
    return SUCCESS;
}
#endif

int nvmlDeviceGetPowerManagementLimit(const gpu *g, unsigned *mw)
{
    ASK(g);
    FAIL("limit_code");
    NEED("power");
    *mw = here->gpus[g->index].limit_mw;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementDefaultLimit(const gpu *g, unsigned *mw)
{
    ASK(g);
    FAIL("limit_code");
    NEED("power");
    *mw = MAX_MW;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimitConstraints(const gpu *g, unsigned *low, unsigned *high)
{
    ASK(g);
    FAIL("limit_code");
    NEED("power");
    *low = MIN_MW;
    *high = MAX_MW;
    return SUCCESS;
}

int nvmlDeviceSetPowerManagementLimit(gpu *g, unsigned mw)
{
    ASK(g);
    NEED("power");
    if (!FACT("permission")) return NO_PERMISSION;
    if (mw < MIN_MW || mw > MAX_MW) return INVALID_ARGUMENT;
    SETTLED(g, s, at_us);
    (void)at_us;
    s->limit_mw = mw;
    return SUCCESS;
}

#ifndef WITHOUT_ENERGY
int nvmlDeviceGetTotalEnergyConsumption(gpu *g, unsigned long long *mj)
{
    ASK(g);
    FAIL("counter_code");
    SETTLED(g, s, at_us);
    (void)at_us;
    switch (FACT("counter")) {
    case 0:
        return NOT_SUPPORTED;
    case 2:
        if (!s->frozen) s->frozen_mj = s->counted_mj;
        s->frozen = 1;
        *mj = (unsigned long long)(s->frozen_mj + 0.5);
        return SUCCESS;
    case 3:
        *mj = 0;
        return SUCCESS;
    default:
        *mj = (unsigned long long)(s->counted_mj + 0.5);
        return SUCCESS;
    }
}
#endif

typedef struct { unsigned gpu, memory; } utilization_rates;

int nvmlDeviceGetUtilizationRates(const gpu *g, utilization_rates *rates)
{
    ASK(g);
    NEED("health");
    if (!g->index && FACT("mig")) return NOT_SUPPORTED;
    SETTLED(g, s, at_us);
    rates->gpu = is_busy(s, at_us) ? 98 : 0;
    rates->memory = rates->gpu / 2;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(const gpu *g, int sensor, unsigned *celsius)
{
    ASK(g);
    NEED("health");
    if (sensor) return INVALID_ARGUMENT;
    SETTLED(g, s, at_us);
    *celsius = 30 + draw_mw(s, at_us) / 10000;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(const gpu *g, int type, unsigned *mhz)
{
    ASK(g);
    NEED("health");
    SETTLED(g, s, at_us);
    if (type == 2) *mhz = MEMORY_MHZ;
    else if (type == 1) *mhz = is_busy(s, at_us) ? SM_MHZ * clock_share(s) : IDLE_SM_MHZ;
    else return INVALID_ARGUMENT;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(const gpu *g, unsigned long long *reasons)
{
    ASK(g);
    NEED("health");
    SETTLED(g, s, at_us);
    if (!is_busy(s, at_us)) *reasons = GPU_IDLE;
    else *reasons = s->limit_mw < DEMAND_MW ? SW_POWER_CAP : 0;
    return SUCCESS;
}

#ifndef WITHOUT_EVENT_REASONS
int nvmlDeviceGetCurrentClocksEventReasons(const gpu *g, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksThrottleReasons(g, reasons);
}
#endif

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
} process_info;

int nvmlDeviceGetComputeRunningProcesses_v2(const gpu *g, unsigned *count, process_info *found)
{
    ASK(g);
    NEED("processes");
    state *s = &here->gpus[g->index];
    unsigned places = *count;
    *count = 0;
    for (int i = -1; i < MAX_WORKERS; i++) {
        pid_t pid = i < 0 ? FACT("foreign") : s->workers[i].pid;
        if (!pid || (i >= 0 && !is_alive(pid))) continue;
        if (*count < places && found)
            found[*count] = (process_info){pid, 1 << 20, 0xFFFFFFFFu, 0xFFFFFFFFu};
        ++*count;
    }
    return *count > places ? INSUFFICIENT_SIZE : SUCCESS;
}

#ifndef WITHOUT_PROCESSES_V3
int nvmlDeviceGetComputeRunningProcesses_v3(const gpu *g, unsigned *count, process_info *found)
{
    return nvmlDeviceGetComputeRunningProcesses_v2(g, count, found);
}
#endif
