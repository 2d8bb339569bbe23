/* The choice by tuning tables: which variant takes the place of the declared one that a call fits.
 *
 * A table was measured on one device. On a device, the table with its name and count applies, or else the one with its
 * arch and the nearest count; runtime/tables.py has the same rule for kernels without a library. Nothing here is an
 * error: if something cannot be found out, the declared variant runs. */
#ifndef KW_TABLES_H
#define KW_TABLES_H

#include <unistd.h>

/* How many variants are compared with a call of the kernel, or of a single variant; `count` is how many it is about. */
KW_FUNCTION int32_t kw_num_compared(const kw_kernel *kernel, int32_t count) {
  return count == kernel->num_variants && kernel->num_declared ? kernel->num_declared : count;
}

/* What a call is compared with: what a variant expects on a device; null if it has no code there, or only runs there
 * where a table says so. A variant that is asked for by itself is compared in any case. */
KW_HOT const kw_signature *kw_compared_on(const kw_kernel *kernel, const kw_variant *variant, int32_t count,
                                          DLDeviceType device) {
  bool tabled = kernel->num_declared && count == kernel->num_variants && variant->tabled >> device & 1;
  return tabled ? NULL : kw_signature_on(variant, device);
}

/* ---- devices ---- */

#ifndef KW_CPUINFO
#define KW_CPUINFO "/proc/cpuinfo"
#endif

/* The text behind the colon of the line "model name"; empty if there is none. */
KW_COLD void kw_read_cpu_name(char *name, size_t room) {
  char line[512];
  FILE *file = fopen(KW_CPUINFO, "re");
  while (file && fgets(line, sizeof line, file)) {
    const char *text = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
    if (!text) continue;
    text += 1 + strspn(text + 1, " \t");
    size_t length = strlen(text);
    while (length && strchr(" \t\n", text[length - 1])) --length;
    snprintf(name, room, "%.*s", (int)length, text);
    break;
  }
  if (file) fclose(file);
}

/* The processors of this machine. They are asked for once, without a lock that a fork could leave locked: of two threads
 * that do it at a time, one throws its answer away. */
KW_COLD const kw_identity *kw_cpu_identity(void) {
  static kw_identity *_Atomic known;
  static const kw_identity unknown;
  kw_identity *before = atomic_load(&known), *found = before ? NULL : calloc(1, sizeof *found);
  if (!found) return before ? before : &unknown;
  long count = sysconf(_SC_NPROCESSORS_ONLN);
  found->count = count > 0 ? (int)count : 0;
  kw_read_cpu_name(found->name, sizeof found->name);
  if (atomic_compare_exchange_strong(&known, &before, found)) return found;
  free(found);
  return before;
}

/* The arch of the code that a variant would run on a device, or null with an error raised. */
KW_COLD const char *kw_arch_on(const kw_variant *variant, DLDevice device) {
  if (device.device_type == kDLCPU) {
    const kw_cpu_unit *unit = kw_cpu_pick(variant);
    return unit ? unit->arch : NULL;
  }
  kw_choice choice;
  choice.index = 0; /* without CUDA there is nothing to choose */
  return kw_choose(variant->module, device.device_id, &choice) ? NULL : variant->module->images[choice.index].arch;
}

KW_COLD const kw_identity *kw_identity_of(DLDevice device) {
  return device.device_type == kDLCPU ? kw_cpu_identity() : kw_device_identity(device.device_id);
}

/* ---- which table counts ---- */

KW_COLD int64_t kw_distance(const kw_table *table, const kw_identity *device) {
  return llabs((long long)table->count - device->count);
}

KW_COLD bool kw_is_exact(const kw_table *table, const kw_identity *device) {
  return table->count == device->count && !strcmp(table->name, device->name);
}

/* Whether a table is for a device more than another one is. */
KW_COLD bool kw_is_nearer(const kw_table *table, const kw_table *other, const kw_identity *device) {
  bool exact = kw_is_exact(table, device);
  int64_t distance = kw_distance(table, device), others = kw_distance(other, device);
  if (!*table->name != !*other->name) return *table->name; /* what the definition prefers comes last */
  if (exact != kw_is_exact(other, device)) return exact;
  return distance != others ? distance < others : table->count < other->count;
}

/* The table that counts for code of an arch on a device; null: none is for that arch. */
KW_COLD const kw_table *kw_nearest_table(const kw_tuning *tuning, DLDeviceType type, const char *arch,
                                         const kw_identity *device) {
  const kw_table *best = NULL;
  for (int32_t i = 0; i < tuning->num_tables; ++i) {
    const kw_table *table = &tuning->tables[i];
    if (table->device != type || strcmp(table->arch, arch)) continue;
    if (!best || kw_is_nearer(table, best, device)) best = table;
  }
  return best;
}

/* Stands for no table where null means that it was not looked for. */
static const kw_table kw_no_table __attribute__((unused));

/* Where the table for a call is kept, or null for a device of which nothing is kept. */
KW_FUNCTION const kw_table *_Atomic *kw_place_of_table(const kw_call *call, int32_t declared) {
  const kw_kernel *kernel = call->kernel;
  bool cpu = call->device.device_type == kDLCPU;
  if (!cpu && (call->device.device_id < 0 || call->device.device_id >= KW_TABLE_PLACES - 1)) return NULL;
  int32_t place = cpu ? 0 : 1 + call->device.device_id;
  return &kernel->tuning->found[place * kw_num_compared(kernel, kernel->num_variants) + declared];
}

/* Looks for the table of a call's device. If the declared variant cannot run there, that call says so, and nothing is
 * kept. */
KW_COLD const kw_table *kw_look_for_table(const kw_call *call, int32_t declared) {
  const char *arch = kw_arch_on(&call->kernel->variants[declared], call->device);
  const kw_identity *device = arch ? kw_identity_of(call->device) : NULL;
  if (!device) {
    kw_text ignored = {0};
    kw_append_raised(&ignored);
    return &kw_no_table;
  }
  const kw_table *found = kw_nearest_table(call->kernel->tuning, call->device.device_type, arch, device);
  if (!found) found = &kw_no_table;
  atomic_store_explicit(kw_place_of_table(call, declared), found, memory_order_release);
  return found;
}

/* The table that counts for a call that a declared variant fits; kw_no_table, if there is none. */
KW_FUNCTION const kw_table *kw_table_for(const kw_call *call, int32_t declared) {
  const kw_table *_Atomic *place = call->kernel->tuning ? kw_place_of_table(call, declared) : NULL;
  if (!place) return &kw_no_table;
  const kw_table *found = atomic_load_explicit(place, memory_order_acquire);
  return __builtin_expect(found != NULL, 1) ? found : kw_look_for_table(call, declared);
}

/* ---- which range counts ---- */

/* The rules for a call, or null; and the product of the sizes that decide. */
typedef struct kw_sought {
  const kw_rules *rules;
  int64_t product;
} kw_sought;

/* Finds the product, if the call has all of the sizes: one that was not compared with a variant may lack some. A product
 * that int64 does not hold is as large as that can be: no range but the last goes so far. */
KW_HOT bool kw_product(const kw_rules *rules, const kw_call *call, int64_t *product) {
  *product = 1;
  for (int32_t i = 0; i < rules->num_sizes; ++i) {
    kw_size at = rules->sizes[i];
    const DLTensor *tensor = call->tensors[at.argument];
    if (at.axis < 0 ? !call->values[at.argument] : !tensor || at.axis >= tensor->ndim) return false;
    int64_t size = at.axis < 0 ? call->values[at.argument]->v_int64 : kw_on_line(tensor->shape[at.axis], at.times, at.plus);
    bool negative = (*product < 0) != (size < 0);
    if (__builtin_mul_overflow(*product, size, product)) *product = negative ? INT64_MIN : INT64_MAX;
  }
  return true;
}

/* The rules of a table for a call that a declared variant may fit. */
KW_HOT kw_sought kw_sought_in(const kw_table *table, const kw_call *call, int32_t declared) {
  kw_sought sought = {NULL, 0};
  const kw_rules *rules = table->rules ? &table->rules[declared] : NULL;
  if (rules && rules->num_ranges && kw_product(rules, call, &sought.product)) sought.rules = rules;
  return sought;
}

/* The same for the first declared variant, before the call is compared with it, if its table was looked for. Each step
 * to the product waits for the one before, and takes no time while the CPU compares. Later the call would wait for them:
 * where the sizes change, the CPU foresees neither range nor variant, and has to know them before it goes on. */
KW_HOT kw_sought kw_look_ahead(const kw_call *call, int32_t count) {
  const kw_kernel *kernel = call->kernel;
  bool tuned = kernel->tuning && count == kernel->num_variants;
  const kw_table *_Atomic *place = tuned ? kw_place_of_table(call, 0) : NULL;
  const kw_table *table = place ? atomic_load_explicit(place, memory_order_acquire) : NULL;
  return table ? kw_sought_in(table, call, 0) : (kw_sought){NULL, 0};
}

/* Up to so many ranges are compared one after the other: the CPU foresees where that ends if sizes are those of the call
 * before, and then it takes no time. Bisection would wait for each comparison. */
#define KW_FEW_RANGES 32

/* The first range that goes as far as the product; the last one goes as far as any. */
KW_FUNCTION const kw_range *kw_range_of(const kw_rules *rules, int64_t product) {
  const kw_range *low = rules->ranges;
  for (int32_t count = rules->num_ranges; __builtin_expect(count > KW_FEW_RANGES, 0); count -= count / 2)
    if (low[count / 2 - 1].upto < product) low += count / 2;
  while (low->upto < product) ++low;
  return low;
}

/* The variant that runs a call that a declared one fits: the one that a table has for it, if the call fits that too.
 * `ahead` is what kw_look_ahead has found. */
KW_FUNCTION const kw_variant *kw_tuned(const kw_call *call, int32_t declared, kw_sought ahead) {
  const kw_variant *variants = call->kernel->variants, *own = &variants[declared];
  kw_sought sought = ahead.rules && !declared ? ahead : kw_sought_in(kw_table_for(call, declared), call, declared);
  if (!sought.rules) return own;
  const kw_variant *other = &variants[kw_range_of(sought.rules, sought.product)->variant];
  const kw_signature *expected = kw_signature_on(other, call->device.device_type);
  if (expected == kw_signature_on(own, call->device.device_type)) return other;
  return expected && kw_matches(expected, call, KW_DATA) ? other : own;
}

/* ---- why ---- */

KW_COLD void kw_append_range(kw_text *text, const kw_rules *rules, int64_t product, const kw_range *range) {
  bool first = range == rules->ranges, last = range == rules->ranges + rules->num_ranges - 1;
  if (first && last) {
    kw_append(text, "any %s", rules->num_sizes ? rules->by : "size");
    return;
  }
  kw_append(text, "%s = %" PRId64 ", ", rules->by, product);
  if (first) kw_append(text, "up to %" PRId64, range->upto);
  else if (last) kw_append(text, "above %" PRId64, range[-1].upto);
  else kw_append(text, "from %" PRId64 " to %" PRId64, range[-1].upto + 1, range->upto);
}

KW_COLD void kw_append_table(kw_text *text, const kw_table *table, const kw_identity *device) {
  if (!*table->name) return kw_append(text, "the definition's preference for %s ", table->arch);
  kw_append(text, "the tuning table of '%s' (count %d), ", table->name, table->count);
  if (kw_is_exact(table, device)) kw_append(text, "which is this device, ");
  else kw_append(text, "the nearest to this device, '%s' (count %d), ", device->name, device->count);
}

/* Why a call that a declared variant fits runs the variant that kw_tuned has chosen. Raises where the call would. */
KW_COLD int kw_append_reason(kw_text *text, const kw_call *call, int32_t declared, const kw_variant *chosen) {
  const kw_variant *variants = call->kernel->variants;
  const kw_table *table = kw_table_for(call, declared);
  const char *arch = kw_arch_on(&variants[declared], call->device);
  const kw_identity *device = arch ? kw_identity_of(call->device) : NULL;
  if (!device) return -1;
  kw_sought sought = kw_sought_in(table, call, declared);
  const kw_range *range = sought.rules ? kw_range_of(sought.rules, sought.product) : NULL;
  bool tuned = range && chosen == &variants[range->variant];
  if (!tuned) kw_append(text, "it is the first declared variant that fits; ");
  if (!call->kernel->tuning) return kw_append(text, "there are no tuning tables"), 0;
  if (table == &kw_no_table) return kw_append(text, "no tuning table is for %s", arch), 0;
  kw_append_table(text, table, device);
  if (!range) return kw_append(text, "has no rules for it"), 0;
  kw_append(text, "has %s for ", variants[range->variant].slug);
  kw_append_range(text, sought.rules, sought.product, range);
  if (!tuned) kw_append(text, ", which these arguments do not fit");
  return 0;
}

#endif
