/* A libnvidia-ml.so.1 with no GPU behind it: enough of NVML for the real pynvml to load and ask.
 *
 * Facts of the machine are "key=value" words in the environment variable FAKE_NVML, read when NVML
 * is initialised first; fake_nvml_set(key, value) changes them while the process runs:
 *   gpus        number of GPUs                          (2)
 *   different   1: every GPU is another model           (0)
 *   mig         MIG instances on GPU 0                  (0)
 *   driver      0: no driver is loaded; 2: it does not match the library (1)
 *   withheld    index of a GPU that this user may not open, or -1
 *   lost        index of a GPU that has fallen off the bus, or -1
 *   counter     0: not supported; 1: counts; 2: stands still; 3: restarts from zero (1)
 *   power       0: power and limits are not supported   (1)
 *   permission  0: power limits are refused             (1)
 *   clock_ms    the time; energy follows from it; -1: real time  (0)
 * fake_nvml_get("users") tells how often NVML is initialised and not shut down.
 * Compiled with WITHOUT_ENERGY it is a driver older than the energy counter.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
       NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, LIB_RM_VERSION_MISMATCH = 18 };

enum { MAX_GPUS = 8, MIN_MW = 100000, MAX_MW = 400000, DEMAND_MW = 250000, COUNTER_STEP_MS = 100 };

typedef struct gpu {
    int index;
    int mig;                       /* -1: a whole GPU, else which instance */
    unsigned limit_mw;
    long since_ms;                 /* since when the limit holds */
    unsigned long long used_mj;    /* energy until then */
    unsigned long long frozen_mj;
    int frozen;
} gpu;

static struct { const char *key; long value; } facts[] = {
    {"gpus", 2}, {"different", 0}, {"mig", 0}, {"driver", 1}, {"withheld", -1}, {"lost", -1},
    {"counter", 1}, {"power", 1}, {"permission", 1}, {"clock_ms", 0}, {"users", 0},
};
static gpu gpus[MAX_GPUS], instances[MAX_GPUS];
static int ready;

long fake_nvml_get(const char *key)
{
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (!strcmp(facts[i].key, key)) return facts[i].value;
    abort();
}

void fake_nvml_set(const char *key, long value)
{
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (!strcmp(facts[i].key, key)) { facts[i].value = value; return; }
    abort();
}

static void prepare(void)
{
    char words[256] = "";
    if (getenv("FAKE_NVML")) strncpy(words, getenv("FAKE_NVML"), sizeof words - 1);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        char *equals = strchr(word, '=');
        if (!equals) abort();
        *equals = 0;
        fake_nvml_set(word, atol(equals + 1));
    }
    for (int i = 0; i < MAX_GPUS; i++) {
        gpus[i] = (gpu){.index = i, .mig = -1, .limit_mw = MAX_MW};
        instances[i] = (gpu){.index = 0, .mig = i};
    }
    ready = 1;
}

static unsigned draw_mw(const gpu *g) { return g->limit_mw < DEMAND_MW ? g->limit_mw : DEMAND_MW; }

static long now_ms(void)
{
    struct timespec now;
    long told_ms = fake_nvml_get("clock_ms");
    if (told_ms >= 0) return told_ms;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static unsigned long long energy_mj(const gpu *g, long at_ms)
{
    return g->used_mj + (unsigned long long)draw_mw(g) * (at_ms - g->since_ms) / 1000;
}

static int check(const gpu *g)
{
    if (!fake_nvml_get("users")) return UNINITIALIZED;
    if (g->index == fake_nvml_get("lost")) return GPU_IS_LOST;
    return SUCCESS;
}

#define CHECK(g) do { int code = check(g); if (code) return code; } while (0)
#define NEED_POWER() do { if (!fake_nvml_get("power")) return NOT_SUPPORTED; } while (0)

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (!ready) prepare();
    if (fake_nvml_get("driver") == 0) return DRIVER_NOT_LOADED;
    if (fake_nvml_get("driver") == 2) return LIB_RM_VERSION_MISMATCH;
    fake_nvml_set("users", fake_nvml_get("users") + 1);
    return SUCCESS;
}

int nvmlShutdown(void)
{
    if (!fake_nvml_get("users")) return UNINITIALIZED;
    fake_nvml_set("users", fake_nvml_get("users") - 1);
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case GPU_IS_LOST: return "GPU is lost";
    case NO_PERMISSION: return "Insufficient Permissions";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "some other fake error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = fake_nvml_get("gpus");
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu **handle)
{
    if (index >= fake_nvml_get("gpus")) return INVALID_ARGUMENT;
    if (index == fake_nvml_get("withheld")) return NO_PERMISSION;
    *handle = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(const gpu *g, char *uuid, unsigned length)
{
    CHECK(g);
    if (g->mig >= 0) snprintf(uuid, length, "MIG-%d0000000-5555", g->mig);
    else snprintf(uuid, length, "GPU-%d0000000-1111", g->index);
    return SUCCESS;
}

int nvmlDeviceGetName(const gpu *g, char *name, unsigned length)
{
    CHECK(g);
    int model = fake_nvml_get("different") ? g->index : 0;
    snprintf(name, length, "Fake %c100%s", 'A' + model, g->mig >= 0 ? " MIG 1g.5gb" : "");
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(const gpu *g, unsigned *count)
{
    CHECK(g);
    if (g->index || !fake_nvml_get("mig")) return NOT_SUPPORTED;
    *count = MAX_GPUS - 1;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(const gpu *g, unsigned index, gpu **handle)
{
    CHECK(g);
    if (index >= fake_nvml_get("mig")) return NOT_FOUND;
    *handle = &instances[index];
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(const gpu *g, unsigned *mw)
{
    CHECK(g);
    NEED_POWER();
    *mw = draw_mw(g);
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimit(const gpu *g, unsigned *mw)
{
    CHECK(g);
    NEED_POWER();
    *mw = g->limit_mw;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementDefaultLimit(const gpu *g, unsigned *mw)
{
    CHECK(g);
    NEED_POWER();
    *mw = MAX_MW;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimitConstraints(const gpu *g, unsigned *low, unsigned *high)
{
    CHECK(g);
    NEED_POWER();
    *low = MIN_MW;
    *high = MAX_MW;
    return SUCCESS;
}

int nvmlDeviceSetPowerManagementLimit(gpu *g, unsigned mw)
{
    CHECK(g);
    NEED_POWER();
    if (!fake_nvml_get("permission")) return NO_PERMISSION;
    if (mw < MIN_MW || mw > MAX_MW) return INVALID_ARGUMENT;
    g->used_mj = energy_mj(g, now_ms());
    g->since_ms = now_ms();
    g->limit_mw = mw;
    return SUCCESS;
}

#ifndef WITHOUT_ENERGY
int nvmlDeviceGetTotalEnergyConsumption(gpu *g, unsigned long long *mj)
{
    CHECK(g);
    long at_ms = now_ms();
    long step_ms = at_ms - at_ms % COUNTER_STEP_MS;
    unsigned long long counted_mj = energy_mj(g, step_ms < g->since_ms ? g->since_ms : step_ms);
    switch (fake_nvml_get("counter")) {
    case 0:
        return NOT_SUPPORTED;
    case 2:
        if (!g->frozen) g->frozen_mj = counted_mj;
        g->frozen = 1;
        *mj = g->frozen_mj;
        return SUCCESS;
    case 3:
        *mj = 0;
        return SUCCESS;
    default:
        *mj = counted_mj;
        return SUCCESS;
    }
}
#endif
