// Loads the plugin from C as NCCL does and looks at every table through declarations of its own: a NET table
// is an array of words, the first a name, the others functions. Exit status 0 if all is as the interface
// wants it.
//
//   load_plugin [-d] PATH...      each PATH is opened, walked, closed, opened again; -d: there must be
//   devices
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;
static int min_devices = 0;

#define EXPECT(condition, ...)      \
  do {                              \
    if (!(condition)) {             \
      ++failures;                   \
      fprintf(stderr, __VA_ARGS__); \
      fputc('\n', stderr);          \
    }                               \
  } while (0)

enum { kInternalError = 3, kGetDeviceMr = 17, kIrecvConsumed = 18 };

static const struct {
  int version;
  size_t words;
  size_t properties_bytes;
} kVersions[] = {{7, 19, 56}, {8, 19, 64}, {9, 20, 104}, {10, 20, 104}, {11, 22, 112}, {12, 22, 128}};

typedef int (*InitV7)(void* logger);
typedef int (*InitV10)(void* logger, void* profiler);
typedef int (*InitV11)(void** ctx, uint64_t comm_id, void* config, void* logger, void* profiler);
typedef int (*Devices)(int* count);
typedef int (*GetProperties)(int dev, void* properties);
typedef int (*Finalize)(void* ctx);

static void Logger(int level, unsigned long flags, const char* file, int line, const char* format, ...) {
  (void)level, (void)flags, (void)file, (void)line, (void)format;
}

static void WalkWords(void* const* table, int version, size_t words) {
  Dl_info info;
  ElfW(Sym)* symbol = NULL;
  EXPECT(dladdr1(table, &info, (void**)&symbol, RTLD_DL_SYMENT) != 0 && symbol != NULL,
         "v%d: not in a library", version);
  if (symbol == NULL) return;
  const void* const library = info.dli_fbase;
  EXPECT(symbol->st_size == words * sizeof(void*), "v%d: %lu bytes instead of %zu", version,
         (unsigned long)symbol->st_size, words * sizeof(void*));
  EXPECT(strcmp((const char*)table[0], "Sluice") == 0, "v%d: name is %s", version, (const char*)table[0]);
  for (size_t i = 1; i < words; ++i) {
    if (i == kGetDeviceMr || i == kIrecvConsumed) {
      EXPECT(table[i] == NULL, "v%d: member %zu should be null", version, i);
      continue;
    }
    EXPECT(table[i] != NULL && dladdr(table[i], &info) != 0 && info.dli_fbase == library,
           "v%d: member %zu is no function of the library", version, i);
  }
}

// init, devices, getProperties, finalize, over whatever devices this host has.
static void Use(void* const* table, int version, size_t properties_bytes) {
  void* ctx = NULL;
  int result;
  if (version >= 11) {
    result = ((InitV11)table[1])(&ctx, 42, NULL, (void*)Logger, NULL);
  } else if (version == 10) {
    result = ((InitV10)table[1])((void*)Logger, NULL);
  } else {
    result = ((InitV7)table[1])((void*)Logger);
  }
  int count = -1;
  EXPECT(((Devices)table[2])(&count) == 0 && count >= min_devices, "v%d: devices() gives %d", version, count);
  // Without devices v11 and later succeed and report none; older versions have no finalize and fail instead.
  EXPECT(result == (version < 11 && count == 0 ? kInternalError : 0), "v%d: init gives %d with %d devices",
         version, result, count);
  for (int dev = 0; dev < count; ++dev) {
    unsigned char properties[256];
    memset(properties, 0xab, sizeof(properties));
    EXPECT(((GetProperties)table[3])(dev, properties) == 0, "v%d: getProperties(%d) fails", version, dev);
    for (size_t i = properties_bytes; i < sizeof(properties); ++i) {
      EXPECT(properties[i] == 0xab, "v%d: getProperties writes byte %zu behind the structure", version, i);
    }
    int speed;
    memcpy(&speed, properties + (version == 7 ? 28 : version == 8 ? 32 : 36), sizeof(speed));
    EXPECT(speed > 0, "v%d: device %d has speed %d", version, dev, speed);
  }
  if (version >= 11) EXPECT(((Finalize)table[20])(ctx) == 0, "v%d: finalize fails", version);
  printf("v%d: %d devices\n", version, count);
}

// The other halves: a name and functions, some of which may be missing.
static const struct {
  const char* symbol;
  size_t words;       // of the first five versions
  size_t last_words;  // of the sixth
  int may_be_null;    // word, or 0
} kHalves[] = {{"ncclProfiler_v%d", 6, 6, 0}, {"ncclTunerPlugin_v%d", 4, 5, 4}};

static void WalkHalves(void* library) {
  for (size_t h = 0; h < sizeof(kHalves) / sizeof(kHalves[0]); ++h) {
    for (int version = 1; version <= 6; ++version) {
      char symbol[32];
      snprintf(symbol, sizeof(symbol), kHalves[h].symbol, version);
      void* const* const table = (void* const*)dlsym(library, symbol);
      EXPECT(table != NULL, "%s is missing", symbol);
      if (table == NULL) continue;
      const size_t words = version == 6 ? kHalves[h].last_words : kHalves[h].words;
      EXPECT(strcmp((const char*)table[0], "Sluice") == 0, "%s: name is %s", symbol, (const char*)table[0]);
      for (size_t i = 1; i < words; ++i) {
        Dl_info info;
        if (table[i] == NULL && (int)i == kHalves[h].may_be_null) continue;
        EXPECT(table[i] != NULL && dladdr(table[i], &info) != 0, "%s: member %zu is no function", symbol, i);
      }
    }
  }
  EXPECT(dlsym(library, "ncclProfiler_v7") == NULL, "ncclProfiler_v7 is there");
}

// A profiler from init to finalize, with what NCCL passes when something went wrong before.
typedef int (*ProfilerInitV5)(void** ctx, uint64_t id, int* mask, const char* name, int nodes, int ranks,
                              int rank, void* logger);
typedef int (*StartEvent)(void* ctx, void** event, void* descr);
typedef int (*OnEvent)(void* event);
typedef int (*RecordState)(void* event, int state, void* args);

static void UseProfiler(void* library) {
  void* const* const table = (void* const*)dlsym(library, "ncclProfiler_v6");
  if (table == NULL) return;
  void* ctx = NULL;
  int mask = -1;
  EXPECT(((ProfilerInitV5)table[1])(&ctx, 42, &mask, NULL, 1, 2, 0, (void*)Logger) == 0,
         "profiler init fails");
  EXPECT(ctx != NULL && (mask & 1 << 4) != 0, "profiler: mask %x", mask);
  struct {
    uint64_t type;
    void* parent;
    int rank;
    char rest[88];
  } descr;
  for (int type = 0; type < 16; ++type) {
    void* event = (void*)1;
    memset(&descr, 0, sizeof(descr));
    descr.type = UINT64_C(1) << type;
    descr.parent = (void*)(uintptr_t)0xdeadbeef;  // nobody's: must not be followed
    EXPECT(((StartEvent)table[2])(type == 1 || type == 2 || type == 10 ? NULL : ctx, &event, &descr) == 0,
           "startEvent(%d) fails", type);
    EXPECT(((RecordState)table[4])(event, 20, NULL) == 0, "recordEventState(%d) fails", type);
    EXPECT(((OnEvent)table[3])(event) == 0, "stopEvent(%d) fails", type);
  }
  EXPECT(((StartEvent)table[2])(NULL, NULL, NULL) == 0 && ((OnEvent)table[3])(NULL) == 0 &&
             ((RecordState)table[4])(NULL, 20, NULL) == 0,
         "null events are not tolerated");
  EXPECT(((Finalize)table[5])(ctx) == 0, "profiler finalize fails");
}

int main(int argc, char** argv) {
  min_devices = argc > 1 && strcmp(argv[1], "-d") == 0;
  EXPECT(argc > 1 + min_devices, "usage: load_plugin [-d] PATH...");
  for (int i = 1 + min_devices; i < argc; ++i) {
    for (int round = 0; round < 2; ++round) {
      void* const library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
      EXPECT(library != NULL, "%s", dlerror());
      if (library == NULL) return 1;
      for (size_t v = 0; v < sizeof(kVersions) / sizeof(kVersions[0]); ++v) {
        char symbol[32];
        snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", kVersions[v].version);
        void* const* const table = (void* const*)dlsym(library, symbol);
        EXPECT(table != NULL, "%s is missing", symbol);
        if (table == NULL) continue;
        WalkWords(table, kVersions[v].version, kVersions[v].words);
        Use(table, kVersions[v].version, kVersions[v].properties_bytes);
      }
      WalkHalves(library);
      UseProfiler(library);
      EXPECT(dlsym(library, "ncclNetPlugin_v6") == NULL, "ncclNetPlugin_v6 is there");
      EXPECT(dlclose(library) == 0, "dlclose: %s", dlerror());
    }
  }
  return failures == 0 ? 0 : 1;
}
